"""An op of a tile and of few numbers along a last dim of their own, as the fields of words: joins of the op on each number.

So each thread keeps its elements. What is indexed by `[:, None]` Triton moves to another layout, through shared memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_eg.backends.triton.op_table import ELEMENTWISE
from mirage_eg.backends.triton.tiles import real_dims
from mirage_eg.backends.triton.writer import Writer, cast
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
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


def place_of_numbers(graph: Graph, padded: Sequence[Shape], item: Node, value: int) -> int | None:
    """The place of the operand that has the last dim alone, while the other one has all but that; None if there is none."""
    shape = graph.types[value].shape
    real = real_dims(shape)
    if len(item.operands) != 2 or len(real) < 2 or not shape[real[-1]] == padded[value][real[-1]] <= _MOST:
        return None
    shapes = [graph.types[operand].shape for operand in item.operands]
    dims = [[dim + len(shape) - len(of) for dim in real_dims(of)] for of in shapes]
    if sorted(dims, key=len, reverse=True) != [real[:-1], real[-1:]]:
        return None
    return int(dims[1] == real[-1:])


def joined_numbers(writer: Writer, value: int, names: Sequence[str], place: int, on: Callable[[str, str], str]) -> str:
    """The op `on` operands of these names as joins; the one at a `place` has the numbers."""
    padded = [writer.padded[value][dim] for dim in real_dims(writer.graph.types[value].shape)]

    def on_number(number: str) -> str:
        return on(*((names[0], number) if place else (number, names[1])))

    return _Numbers(writer, value, tuple(padded[:-1]), on_number).joined(names[place], padded[-1])


def join_of(writer: Writer, value: int, parts: Sequence[str]) -> str:
    """The tiles of some numbers along a last dim, of which those at even places and at odd ones are joined first."""
    if len(parts) == 2:
        return f"tl.join({', '.join(parts)})"
    joined = ", ".join(join_of(writer, value, parts[first::2]) for first in (0, 1))
    padded = [writer.padded[value][dim] for dim in real_dims(writer.graph.types[value].shape)]
    return f"tl.reshape(tl.join({joined}), {(*padded[:-1], len(parts))})"


def by_numbers_of_last_dim(writer: Writer, item: Node, value: int, dtype: DType) -> str | None:
    """The op in an element type; None unless one operand has all dims but the last, and the other one the last alone."""
    place = place_of_numbers(writer.graph, writer.padded, item, value)
    if place is None or not writer.offsets.keys().isdisjoint(item.operands):
        return None
    tiles = [writer.tiles[operand] for operand in item.operands]
    names = [cast(tile.name, tile.dtype, dtype) for tile in tiles]
    return joined_numbers(writer, value, names, place, lambda x, y: ELEMENTWISE[item.op].triton((x, y), item.mapping))
