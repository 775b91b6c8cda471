"""The least that extents can cost, before a block graph is built from them: so that few have to be built.

It counts by axes what is loaded, stored and computed; what only the block graph shows (padding, accumulation, short rows) is
left out, so the cost model (`mirage_eg.cost`) never says less. A property test holds it to that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.emit_tiles import MatmulForm, matmul_form
from mirage_eg.cost import FUNCTIONS, Work, block_cost, slowdown, tile_flops
from mirage_eg.devices import Device
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.realize import Extents
from mirage_eg.space import Structure


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes of a load or step; `piece` where the looped axis is cut by the loop."""

    axes: frozenset[int]
    piece: bool


def least_us(
    structure: Structure,
    shapes: Sequence[Shape],
    extents: Extents,
    dtypes: Sequence[DType],
    outputs: Sequence[DType],
    device: Device,
) -> float:
    """Microseconds that the kernel takes at least, under the cost model; `dtypes` are those of what it may load."""
    cut = {axis: blocks for group, blocks in extents.grid for axis in group}
    blocks = prod(count for _, count in extents.grid)
    looped = structure.split.looped
    varies = [shape.piece and looped in shape.axes for shape in shapes]

    def extent(axis: int, piece: bool) -> int:
        return extents.sizes[axis] // cut.get(axis, 1) // (extents.loop if piece and axis == looped else 1)

    loaded = 0
    moved = {}
    for load, shape, loops in zip(structure.loads, shapes, varies, strict=False):
        size = dtypes[load.input].itemsize
        loaded += prod(extent(axis, shape.piece) for axis in shape.axes) * size * (extents.loop if loops else 1)
        moved[load.input] = prod(extents.sizes[axis] for axis in shape.axes) * size
    stored = 0
    spread = structure.split.spread
    for output, dtype in zip(structure.outputs, outputs, strict=True):
        partial = cut.get(spread, 1) if spread is not None else 1
        stored += prod(extents.sizes[axis] for axis in shapes[output].axes) * dtype.itemsize * partial
    flops = arithmetic = functions = staged = 0
    steps = {True: 0, False: 0}  # in the loop, and outside
    ahead = False
    first = len(structure.loads)
    coarse = min(dtypes, key=lambda dtype: dtype.itemsize)
    for place, step in enumerate(structure.steps, first):
        operands = [shapes[i] for i in step.operands]
        loops = any(varies[i] for i in step.operands)
        times = extents.loop if loops else 1
        match OPS[step.op].kind:
            case Kind.MATMUL:
                left, right = operands
                reduced = frozenset(step.reduced)
                m, n, k, batch = (
                    prod(extent(axis, any(shape.piece for shape in operands)) for axis in axes)
                    for axes in (
                        left.axes - right.axes,
                        right.axes - left.axes,
                        reduced,
                        left.axes & right.axes - reduced,
                    )
                )
                if matmul_form((batch, m, k), (batch, k, n)) is MatmulForm.DOT:
                    flops += int(tile_flops(batch, m, n, k) * times * slowdown(coarse))
                    ahead |= loops
                    made = (left for i, left in zip(step.operands, operands, strict=True) if i >= first and varies[i])
                    staged += sum(
                        prod(extent(axis, True) for axis in shape.axes) * coarse.itemsize * extents.loop for shape in made
                    )
                else:
                    arithmetic += batch * m * n * k * times
                    steps[loops] += k > 1
            case Kind.REDUCTION:
                cut_up = any(shape.piece for shape in operands)
                steps[loops] += sum(extent(axis, cut_up) > 1 for axis in step.reduced)
                arithmetic += prod(extent(axis, cut_up) for axis in operands[0].axes) * times
            case Kind.ELEMENTWISE:
                work = prod(extent(axis, shapes[place].piece) for axis in shapes[place].axes) * times
                functions += work if step.op in FUNCTIONS else 0
                arithmetic += 0 if step.op in FUNCTIONS else work
    waits = max(1, steps[True]), steps[False]
    work_of_block = Work(loaded, 0, flops, arithmetic, functions, *waits, ahead=ahead, staged=staged)
    return block_cost(work_of_block, blocks, extents.loop, sum(moved.values()) + stored, device).us
