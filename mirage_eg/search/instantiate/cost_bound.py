"""A lower bound of the cost of a tiling, before lowering, so that few tilings are lowered.

It counts loads with the rows that they have in memory, stores and arithmetic by axes, and ignores padding, accumulation and
rows of stores, which only the block graph shows; so it is at most the cost model's prediction
(`mirage_eg.backends.cost.roofline_model`). A property test checks this.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mirage_eg.backends.cost.block_cost import (
    BlockWork,
    Ending,
    block_cost,
    shared,
    slowdown,
    tile_flops,
    without_wgmma,
)
from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.live_iterations import causal_share
from mirage_eg.backends.cost.short_rows import wasted_share
from mirage_eg.backends.cost.staged_operands import OF_FIELDS
from mirage_eg.backends.cost.tile_ops import functions_of
from mirage_eg.backends.triton.tiles import MatmulForm, matmul_form
from mirage_eg.ir.axes import Dims
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.elementwise import CASTS, EXPONENTIALS
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.instantiate.tiling import TileAxes, Tiling
from mirage_eg.search.structure import Structure

Tile = int  # the number of a tile among those of an estimate
TileKey = tuple[tuple[int, ...], bool]  # axes, and whether the loop splits the looped one


@dataclass(frozen=True, slots=True)
class _Product:
    """A matrix product by the axes of its batch, m, k and n."""

    batch: Tile
    m: Tile
    k: Tile
    n: Tile
    loops: bool
    computed: tuple[Tile, ...]  # operands that the loop computes
    is_scaled: bool  # whether one of them is computed of loads


@dataclass(frozen=True, slots=True)
class _Counted:
    """Arithmetic, or a function, of every element of a tile; axes that are `reduced` are waited for."""

    tile: Tile
    loops: bool
    reduced: tuple[Tile, ...] = ()  # each of these axes, as a tile of its own
    functions: float = 0
    is_exponential: bool = False


Sizes = tuple[int, ...]


@dataclass(frozen=True)
class LoadSource:
    """A possible load: its type, the axes of its dims (None of a partial result), and its strides (None if it is row-major)."""

    dtype: DType
    dims: Dims | None = None
    strides: Shape | None = None

    @cached_property
    def axes(self) -> tuple[int | None, ...]:
        """An axis for each part of a dim, None for an extent of 1."""
        return tuple(axis for dim in self.dims or () for axis in dim or (None,))

    def strides_of(self, sizes: Sequence[int]) -> Shape | None:
        """The strides of the axes, which have these sizes."""
        if self.strides is None or self.dims is None:
            return None
        found = list[int]()
        for dim, step in zip(reversed(self.dims), reversed(self.strides), strict=True):
            for axis in reversed(dim or (None,)):
                found.append(step)
                step *= 1 if axis is None else sizes[axis]
        return tuple(reversed(found))


def _loaded(structure: Structure) -> set[int]:
    """The places of loads, and of what may be views of them."""
    found = {*range(len(structure.loads))}
    for place, step in enumerate(structure.steps, len(structure.loads)):
        if step.op in TRANSPOSES | RESHAPES and found.issuperset(step.operands):
            found.add(place)
    return found


class CostBound:
    """The least cost of one kernel. The constructor computes everything that does not depend on the tiling.

    `sources` are its possible loads, `split_axis` is the axis of its partial results, `masks` are the inputs that are constant
    masks.
    """

    def __init__(
        self,
        structure: Structure,
        shapes: Sequence[TileAxes],
        sources: Sequence[LoadSource],
        outputs: Sequence[DType],
        device: Device,
        split_axis: int | None,
        masks: frozenset[int] = frozenset(),
    ) -> None:
        self._split_axis, self._device = split_axis, device
        self._looped = looped = structure.split.looped
        self._tiles: list[TileKey] = []  # each once: many loads and steps have the same
        self._numbers: dict[TileKey, Tile] = {}
        tiles = [self._tile(shape.axes, shape.piece) for shape in shapes]
        varies = [shape.piece and looped in shape.axes for shape in shapes]
        dtypes = [source.dtype for source in sources]
        sizes = [dtypes[load.input].itemsize for load in structure.loads]
        self._loads = [*zip(tiles, sizes, varies, strict=False)]
        self._rows = [  # of loads whose dims are known
            (source, load, shapes[place].piece)
            for place, load in enumerate(self._loads)
            if (source := sources[structure.loads[place].input]).dims is not None
        ]
        self._moved = {load.input: (shapes[place].axes, sizes[place]) for place, load in enumerate(structure.loads)}
        self._stored = [(shapes[place].axes, kind.itemsize) for place, kind in zip(structure.outputs, outputs, strict=True)]
        self._dram: dict[Sizes, tuple[int, int]] = {}  # bytes read, and written of one part of the split axis
        numbered = [dtype for dtype in dtypes if dtype is not DType.bool]  # products of masks have the other operand's type
        self._coarse = min(numbered or dtypes, key=lambda dtype: dtype.itemsize)
        self._products: list[_Product] = []
        self._counted: list[_Counted] = []
        self._masks = [
            shapes[place].axes for place, load in enumerate(structure.loads) if load.input in masks and varies[place]
        ]
        self._count(structure, shapes, varies)

    def _tile(self, axes: Iterable[int], cut: bool) -> Tile:
        key = tuple(sorted(axes)), cut
        if key not in self._numbers:
            self._numbers[key] = len(self._tiles)
            self._tiles.append(key)
        return self._numbers[key]

    def _count(self, structure: Structure, shapes: Sequence[TileAxes], varies: Sequence[bool]) -> None:
        scaled, products = set[int](), set[int]()  # places of what the loop computes of loads, and of products
        for place, step in enumerate(structure.steps, len(structure.loads)):
            operands = [shapes[i] for i in step.operands]
            loops, cut_up = any(varies[i] for i in step.operands), any(shape.piece for shape in operands)
            is_scaled = not scaled.isdisjoint(step.operands)
            if step.kind is Kind.MATMUL or not products.isdisjoint(step.operands):
                products.add(place)
            elif varies[place] and self._coarse is not DType.uint8:
                scaled |= {place} if is_scaled or (step.kind is Kind.ELEMENTWISE and step.op not in CASTS) else set()
            match step.kind:
                case Kind.MATMUL:
                    left, right = operands
                    k = frozenset(step.reduced)
                    batch, m, n = left.axes & right.axes - k, left.axes - right.axes, right.axes - left.axes
                    computed = tuple(
                        self._tile(shapes[i].axes, True) for i in step.operands if i not in _loaded(structure) and varies[i]
                    )
                    own = [self._tile(axes, cut_up) for axes in (batch, m, k, n)]
                    self._products.append(_Product(own[0], own[1], own[2], own[3], loops, computed, is_scaled))
                case Kind.REDUCTION:
                    reduced = tuple(self._tile((axis,), cut_up) for axis in step.reduced)
                    self._counted.append(_Counted(self._tile(shapes[step.operands[0]].axes, cut_up), loops, reduced))
                case Kind.ELEMENTWISE:
                    constants = dict(zip(OPS[step.op].attributes, step.constants, strict=True))
                    functions, is_exponential = functions_of(step.op, constants), step.op in EXPONENTIALS
                    self._counted.append(
                        _Counted(self._tile(shapes[place].axes, shapes[place].piece), loops, (), functions, is_exponential)
                    )

    def live(self, tiling: Tiling) -> float:
        """The least share of its iterations that constant masks leave, as `live_iterations.live_share` has it."""
        shares = [1.0]
        for axes in self._masks if tiling.loop > 1 else ():
            counts = [(self._looped in group, count) for group, count in tiling.grid if not axes.isdisjoint(group)]
            rows = prod(count for looped, count in counts if not looped)
            shares.append(causal_share(rows, tiling.loop * prod(count for looped, count in counts if looped)))
        return min(shares)

    def us(self, tiling: Tiling) -> float:
        live = self.live(tiling)
        loop = tiling.loop if live == 1 else tiling.loop * live
        whole, piece = tiling.tiles
        elements, dims = [], []  # of every tile
        for axes, cut in self._tiles:
            product, of = 1, piece if cut else whole
            for axis in axes:
                product *= of[axis]
            elements.append(product)
            dims.append(sum([of[axis] > 1 for axis in axes]))
        loaded = sum([elements[tile] * size * (loop if loops else 1) for tile, size, loops in self._loads])
        flops = arithmetic = functions = staged = 0.0
        share = OF_FIELDS if self._coarse is DType.uint8 else 1.0  # of the time of staging, at least
        steps = {True: False, False: False}  # whether there are any in the loop, and outside
        ahead = waited = is_scaled = False
        for product_of in self._products:
            batch, m, k, n = (elements[tile] for tile in (product_of.batch, product_of.m, product_of.k, product_of.n))
            times = loop if product_of.loops else 1
            if matmul_form((batch, m, k), (batch, k, n)) is MatmulForm.DOT:
                is_batched = batch > 1 or max(dims[product_of.m], dims[product_of.n]) > 1
                slower = slowdown(self._coarse) * without_wgmma(is_batched, m)
                flops += int(tile_flops(batch, m, n, k) * times * slower)
                ahead |= product_of.loops
                is_scaled |= product_of.is_scaled
                staged += sum([elements[tile] * self._coarse.itemsize * loop for tile in product_of.computed]) * share
            else:
                arithmetic += batch * m * n * k * times
                steps[product_of.loops] |= k > 1
        for counted in self._counted:
            work = elements[counted.tile] * (loop if counted.loops else 1)
            if counted.functions:
                functions += counted.functions * work
                waited |= counted.loops and tiling.loop > 1 and not counted.is_exponential
            else:
                arithmetic += work
            for tile in counted.reduced:
                steps[counted.loops] |= elements[tile] > 1
        waits = 1, int(steps[False])
        counts = int(loaded), self._wasted(tiling, elements, loop), int(flops), int(arithmetic), int(functions)
        cluster = 1  # as large as it may be, if one may be needed for a row
        if self._looped is None and not self._products and 8 * max(elements) > TileLimits().capacity(rows=True):
            cluster = SEARCH.longest_cluster
        ending = Ending(0, 0, two_buffers=False) if ahead else None
        of_block = BlockWork(
            *counts, *waits, ahead, int(staged), live, ending=ending, waited=waited and ahead, scaled=is_scaled and ahead
        )
        return self.us_of(shared(of_block, cluster), tiling, cluster)

    def _wasted(self, tiling: Tiling, elements: Sequence[int], loop: float) -> int:
        """The bytes that short rows of loads waste."""
        wasted, sizes, (whole, piece) = 0.0, tiling.sizes, tiling.tiles
        for source, (tile, size, loops), cut in self._rows:
            of, axes = piece if cut else whole, source.axes
            shape = tuple([1 if axis is None else of[axis] for axis in axes])
            tensor = tuple([1 if axis is None else sizes[axis] for axis in axes])
            share = wasted_share(shape, tensor, size, is_stored=False, strides=source.strides_of(sizes))
            wasted += elements[tile] * size * (loop if loops else 1) * share
        return int(wasted)

    def us_of(self, work: BlockWork, tiling: Tiling, cluster: int = 1) -> float:
        """Microseconds under the cost model, if each thread block of a cluster does this work."""
        blocks, partial = cluster, 1
        for group, count in tiling.grid:
            blocks *= count
            if self._split_axis in group:
                partial = count
        if tiling.sizes not in self._dram:
            read, written = (
                sum(prod(tiling.sizes[axis] for axis in axes) * size for axes, size in moved)
                for moved in (self._moved.values(), self._stored)
            )
            self._dram[tiling.sizes] = read, written
        read, written = self._dram[tiling.sizes]
        return block_cost(work, blocks, tiling.loop, read + written * partial, self._device).us
