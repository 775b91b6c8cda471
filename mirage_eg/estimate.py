"""The least that extents can cost, before a block graph is built from them: so that few have to be built.

It counts by axes what is loaded, stored and computed; what only the block graph shows (padding, accumulation, short rows) is
left out, so the cost model (`mirage_eg.cost`) never says less. A property test holds it to that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
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


Tile = tuple[tuple[int, ...], bool]  # axes, and whether the loop cuts the looped one


@dataclass(frozen=True, slots=True)
class _Product:
    """A matrix product by the axes of its batch, m, k and n."""

    batch: Tile
    m: Tile
    k: Tile
    n: Tile
    loops: bool
    made: tuple[Tile, ...]  # operands that the loop computes


@dataclass(frozen=True, slots=True)
class _Counted:
    """Arithmetic, or a function, of every element of a tile; axes that are `reduced` are waited for one by one."""

    tile: Tile
    loops: bool
    reduced: tuple[int, ...] = ()
    function: bool = False


class Estimate:
    """What one kernel costs at least; `dtypes` are those of what it may load. All that no extent changes is made here."""

    def __init__(
        self, structure: Structure, shapes: Sequence[Shape], dtypes: Sequence[DType], outputs: Sequence[DType], device: Device
    ) -> None:
        self._structure, self._device = structure, device
        self._looped = looped = structure.split.looped
        tiles = [(tuple(shape.axes), shape.piece) for shape in shapes]
        varies = [shape.piece and looped in shape.axes for shape in shapes]
        pairs = [*zip(structure.loads, tiles, varies, strict=False)]
        self._loads = [(tile, dtypes[load.input].itemsize, loops) for load, tile, loops in pairs]
        moved = {load.input: (tile[0], dtypes[load.input].itemsize) for load, tile, _ in pairs}
        self._moved = tuple(moved.values())
        self._stored = [(tiles[place][0], kind.itemsize) for place, kind in zip(structure.outputs, outputs, strict=True)]
        self._coarse = min(dtypes, key=lambda dtype: dtype.itemsize)
        self._products: list[_Product] = []
        self._counted: list[_Counted] = []
        first = len(structure.loads)
        for place, step in enumerate(structure.steps, first):
            operands = [shapes[i] for i in step.operands]
            loops, cut_up = any(varies[i] for i in step.operands), any(shape.piece for shape in operands)
            match OPS[step.op].kind:
                case Kind.MATMUL:
                    left, right = operands
                    k = frozenset(step.reduced)
                    batch, m, n = left.axes & right.axes - k, left.axes - right.axes, right.axes - left.axes
                    made = tuple((tiles[i][0], True) for i in step.operands if i >= first and varies[i])
                    own = [(tuple(axes), cut_up) for axes in (batch, m, k, n)]
                    self._products.append(_Product(own[0], own[1], own[2], own[3], loops, made))
                case Kind.REDUCTION:
                    self._counted.append(_Counted((tiles[step.operands[0]][0], cut_up), loops, tuple(step.reduced)))
                case Kind.ELEMENTWISE:
                    self._counted.append(_Counted(tiles[place], loops, function=step.op in FUNCTIONS))

    def us(self, extents: Extents) -> float:
        """Microseconds under the cost model."""
        cut = {axis: blocks for group, blocks in extents.grid for axis in group}
        blocks = prod(count for _, count in extents.grid)
        sizes, loop = extents.sizes, extents.loop
        whole = [size // cut.get(axis, 1) for axis, size in enumerate(sizes)]
        piece = [*whole]
        if self._looped is not None:
            piece[self._looped] //= loop

        def elements(tile: Tile) -> int:
            product, of = 1, piece if tile[1] else whole
            for axis in tile[0]:
                product *= of[axis]
            return product

        loaded = sum(elements(tile) * size * (loop if loops else 1) for tile, size, loops in self._loads)
        spread = self._structure.split.spread
        partial = cut.get(spread, 1) if spread is not None else 1
        dram = sum(prod(sizes[axis] for axis in axes) * size for axes, size in self._moved)
        dram += sum(prod(sizes[axis] for axis in axes) * size * partial for axes, size in self._stored)
        flops = arithmetic = functions = staged = 0
        steps = {True: 0, False: 0}  # in the loop, and outside
        ahead = False
        for product in self._products:
            batch, m, k, n = elements(product.batch), elements(product.m), elements(product.k), elements(product.n)
            times = loop if product.loops else 1
            if _form(batch, m, k, n) is MatmulForm.DOT:
                flops += int(tile_flops(batch, m, n, k) * times * slowdown(self._coarse))
                ahead |= product.loops
                staged += sum(elements(tile) * self._coarse.itemsize * loop for tile in product.made)
            else:
                arithmetic += batch * m * n * k * times
                steps[product.loops] += k > 1
        for counted in self._counted:
            work = elements(counted.tile) * (loop if counted.loops else 1)
            functions += work if counted.function else 0
            arithmetic += 0 if counted.function else work
            steps[counted.loops] += sum(elements(((axis,), counted.tile[1])) > 1 for axis in counted.reduced)
        waits = max(1, steps[True]), steps[False]
        work_of_block = Work(loaded, 0, flops, arithmetic, functions, *waits, ahead=ahead, staged=staged)
        return block_cost(work_of_block, blocks, loop, dram, self._device).us


@cache
def _form(batch: int, m: int, k: int, n: int) -> MatmulForm:
    return matmul_form((batch, m, k), (batch, k, n))
