"""An op of a tile and of few numbers along a last dim of their own, as the fields of words: joins of the op on each number.

So each thread keeps its elements. What is indexed by `[:, None]` Triton moves to another layout, through shared memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mirage_eg.backends.triton.op_table import ELEMENTWISE
from mirage_eg.backends.triton.writer import Writer, cast
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node
from mirage_eg.ir.shapes import Shape

_MOST = 8  # numbers: fields of four bits in a word


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The op `on` each number, whose results have a physical `shape`."""

    writer: Writer
    value: int
    shape: Shape
    on: Callable[[str], str]

    def joined(self, vector: str, count: int) -> str:
        """An expression of the results, along a new last dim of so many numbers: those at even places and at odd ones."""
        pairs = vector if count == 2 else f"tl.reshape({vector}, ({count // 2}, 2))"
        halves = [self.writer.new_name("even"), self.writer.new_name("odd")]
        self.writer.say(self.writer.graph.phases[self.value], f"{', '.join(halves)} = tl.split({pairs})")
        if count == 2:
            return f"tl.join({', '.join(map(self.on, halves))})"
        joined = ", ".join(self.joined(half, count // 2) for half in halves)
        return f"tl.reshape(tl.join({joined}), {(*self.shape, count)})"


def by_numbers_of_last_dim(writer: Writer, item: Node, value: int, dtype: DType) -> str | None:
    """The op in an element type; None unless one operand has all dims but the last, and the other one the last alone."""
    shape, padded = writer.graph.types[value].shape, writer.padded[value]
    real = [dim for dim, extent in enumerate(shape) if extent > 1]
    if len(item.operands) != 2 or len(real) < 2 or not writer.offsets.keys().isdisjoint(item.operands):
        return None
    tiles = [writer.tiles[i] for i in item.operands]
    dims = [[dim + len(shape) - len(tile.shape) for dim in tile.dims] for tile in tiles]
    count, swapped = padded[real[-1]], dims[0] == real[-1:]
    if sorted(dims, key=len, reverse=True) != [real[:-1], real[-1:]] or not shape[real[-1]] == count <= _MOST:
        return None
    names = [cast(tile.name, tile.dtype, dtype) for tile in tiles]

    def on(number: str) -> str:
        return ELEMENTWISE[item.op].triton((number, names[1]) if swapped else (names[0], number), item.mapping)

    return _Numbers(writer, value, tuple(padded[dim] for dim in real[:-1]), on).joined(names[not swapped], count)
