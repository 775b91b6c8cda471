"""A guess at the cost of extents before a block graph is built from them: only to try promising ones first.

It counts what is loaded and multiplied, by axes; the cost model (`mirage_eg.cost`) has the last word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.cost import Work, block_cost, tile_flops
from mirage_eg.devices import Device
from mirage_eg.realize import Extents
from mirage_eg.space import Structure


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes of a load or step; `piece` where the looped axis is cut by the loop."""

    axes: frozenset[int]
    piece: bool


def estimate_us(structure: Structure, shapes: Sequence[Shape], extents: Extents, itemsize: int, device: Device) -> float:
    """Microseconds of one kernel, roughly; `itemsize` is that of the inputs."""
    cut = {axis: blocks for group, blocks in extents.grid for axis in group}
    blocks = prod(count for _, count in extents.grid)
    looped = structure.split.looped

    def extent(axis: int, piece: bool) -> int:
        return extents.sizes[axis] // cut.get(axis, 1) // (extents.loop if piece and axis == looped else 1)

    loaded = moved = flops = 0
    for shape in shapes[: len(structure.loads)]:
        loaded += prod(extent(axis, shape.piece) for axis in shape.axes) * itemsize * (extents.loop if shape.piece else 1)
        moved += prod(extents.sizes[axis] for axis in shape.axes) * itemsize
    for output in structure.outputs:
        spread = structure.split.spread
        partial = cut.get(spread, 1) if spread is not None else 1
        moved += prod(extents.sizes[axis] for axis in shapes[output].axes) * itemsize * partial
    for step in structure.steps:
        if step.op == "matmul":
            left, right = (shapes[i] for i in step.operands)
            piece = left.piece or right.piece
            reduced = frozenset(step.reduced)
            m, n, k, batch = (
                prod(extent(axis, piece) for axis in axes)
                for axes in (
                    left.axes - right.axes,
                    right.axes - left.axes,
                    reduced,
                    left.axes & right.axes - reduced,
                )
            )
            flops += tile_flops(batch, m, n, k) * (extents.loop if piece else 1)
    return block_cost(Work(loaded, 0, flops, 0, 0), blocks, extents.loop, moved, device).us
