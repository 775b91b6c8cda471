"""Fields of a word, side by side: one shift by a tensor of places instead of a shift and a mask for each field.

So the numbers of packed weights are one value, as the program means them, and not as many as a word has fields.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mirage_eg.frontend.aten_call import Call, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import PACKAGED
from mirage_eg.ir.op.moves import RESHAPES


class _Field(NamedTuple):
    """The `bits` of a word above its lowest `shift`; the word by its position in the graph."""

    word: int
    bits: int
    shift: int


def joined_fields(call: Call, pieces: Sequence[Tensor], dim: int) -> Tensor | None:
    """Pieces of extent 1 along a dim, joined there, if they are fields of as many bits of one word; else None."""
    found = [_field(call, piece) for piece in pieces]
    fields = [it for it in found if it is not None]
    if len(pieces) < 2 or len(fields) < len(pieces) or len({(it.word, it.bits) for it in fields}) > 1:
        return None
    if any(piece.shape[dim] != 1 for piece in pieces):
        return None
    word = call.graph.reshape(Tensor(call.graph, fields[0].word), pieces[0].shape)
    return fields_of(call, word, dim, fields[0].bits, [it.shift for it in fields])


def fields_of(call: Call, word: Tensor, dim: int, bits: int, shifts: Sequence[int]) -> Tensor:
    """The `bits` of words above each of some shifts, along a dim of extent 1."""
    behind = [1] * (len(word.shape) - 1 - dim)
    name = f"shifts_{word.dtype}_{'_'.join(map(str, shifts))}"
    places = call.lift(name, (len(shifts),), word.dtype, lambda: np.array(shifts))
    return call.graph.low_bits(word >> reshaped(places, (len(shifts), *behind)), bits)


def _field(call: Call, x: Tensor) -> _Field | None:
    item = call.graph.maker(x.position)
    while item.op in RESHAPES:
        item = call.graph.maker(item.operands[0])
    if (taken := _taken_bits(item)) is None:
        return None
    shift, bits = taken
    if not bits:  # all above, among them the signs of numbers below 0
        return _Field(item.operands[0], 8 - shift, shift) if x.dtype is DType.uint8 else None
    inner = call.graph.maker(item.operands[0])
    if (behind := _taken_bits(inner)) is not None and not behind[1]:
        return _Field(inner.operands[0], bits, behind[0])
    return _Field(item.operands[0], bits, 0)


def _taken_bits(item: Node) -> tuple[int, int] | None:
    record = PACKAGED.get(item.op)
    return None if record is None or record.taken_bits is None else record.taken_bits(**item.mapping)
