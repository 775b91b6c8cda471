"""Lowers a structure with a tiling to a µGraph: orders dims, and rearranges operands whose dims do not match.

A structure's values have sets of axes; a block graph's tiles have dims in order. The layout of a tile is a tuple of dims,
each a row-major product of axes, empty for an extent of 1, as in `ir.axes`. Loads keep the order of the program's tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from math import ceil, prod

from mirage_eg.backends.cost.block_cost import block_work, crosses_warps
from mirage_eg.backends.cost.liveness import computes_behind, live_bytes, multiplies_tiles
from mirage_eg.backends.cost.registers import threads_for
from mirage_eg.backends.triton.clusters import shared_row
from mirage_eg.backends.triton.tiles import expanded
from mirage_eg.backends.triton.warps import MOST_WARPS, WARP
from mirage_eg.ir import write
from mirage_eg.ir.axes import Axes, Dim, Dims
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.result_dtypes import WRAPPING
from mirage_eg.ir.shapes import Shape
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.instantiate.tiling import Tiling
from mirage_eg.search.structure import SplitReduction, Step, Structure


@dataclass(frozen=True, slots=True)
class Outline:
    """A block graph apart from its tiling: nodes, the axes of different dims, and for each tile the places of its dims."""

    block: Graph
    dims: tuple[tuple[tuple[int, bool], ...], ...]  # an axis, and whether the loop splits it
    tiles: tuple[tuple[int, ...], ...]

    def shapes(self, tiling: Tiling) -> list[tuple[int, ...]]:
        """The shapes of all tiles in a thread block under another tiling of the same form."""
        whole, piece = tiling.tiles
        extents = [prod([piece[axis] if looped else whole[axis] for axis, looped in dim]) for dim in self.dims]
        return [tuple([extents[dim] for dim in tile]) for tile in self.tiles]


def lower_structure(plan: Structure | SplitReduction, program: Graph, axes: Axes, *tilings: Tiling) -> Graph:
    """The kernel graph of a structure or split-reduction pair, with a tiling for each of its kernels.

    `program` consists of primitive ops and has the sizes of the tilings; the result has its names and dtypes.
    """
    return lower_with_outlines(plan, program, axes, *tilings)[0]


def lower_with_outlines(
    plan: Structure | SplitReduction, program: Graph, axes: Axes, *tilings: Tiling
) -> tuple[Graph, tuple[Outline, ...]]:
    """The same, with an outline of each kernel."""
    writer = _KernelGraphWriter(program, axes)
    match plan:
        case Structure():
            results = writer.kernel(plan, tilings[0], _wanted(program, axes))
        case SplitReduction(first, last):
            partials = [_Store(None, DType.float32) for _ in first.outputs]
            writer.sources += writer.kernel(first, tilings[0], partials)
            results = writer.kernel(last, tilings[1], _wanted(program, axes))
    return writer.finish(results), tuple(writer.outlines)


@dataclass(frozen=True, slots=True)
class _Store:
    """The layout of a stored output: its dims (None: those of the value) and type."""

    dims: Dims | None
    dtype: DType


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor in device memory with its dims, one axis each."""

    value: int
    dims: Dims


def _wanted(program: Graph, axes: Axes) -> list[_Store]:
    return [
        _Store(_one_axis_each(axes.dims[item.operands[0]]), kind.dtype)
        for item, kind in zip(program.outputs, program.output_types, strict=True)
    ]


class _KernelGraphWriter:
    """Writes the kernel graph: views of the inputs with one axis a dim, the blocks, views of the outputs."""

    def __init__(self, program: Graph, axes: Axes) -> None:
        self.program, self.axes = program, axes
        self.outlines: list[Outline] = []
        self.checker = Checker(Level.KERNEL)
        pairs = zip(program.inputs, program.input_values, strict=True)
        self.sources = [_Source(self.checker.append(item)[0], axes.dims[value]) for item, value in pairs]

    def kernel(self, structure: Structure, tiling: Tiling, stores: Sequence[_Store]) -> list[_Source]:
        """Append one block graph with the views that it loads."""
        sources = []
        for load in structure.loads:
            source = self.sources[load.input]
            plain = _one_axis_each(source.dims)
            if plain != source.dims:
                view = self.checker.append(write.reshape(source.value, _shape(plain, tiling.sizes)))[0]
                source = self.sources[load.input] = _Source(view, plain)
            sources.append(source)
        kinds = [self.checker.types[source.value].dtype for source in sources]
        block = _BlockWriter(self, structure, tiling, kinds, [source.dims for source in sources])
        graph = _with_threads(block.build(stores))
        tiles = block.tiles_by_axes()
        places = {dim: place for place, dim in enumerate(dict.fromkeys(dim for tile in tiles for dim in tile))}
        by_place = tuple(tuple(map(places.__getitem__, tile)) for tile in tiles)
        self.outlines.append(Outline(graph, tuple(places), by_place))
        results = self.checker.append(node("block", *(source.value for source in sources), graph=graph))
        return [_Source(value, dims) for value, dims in zip(results, block.stored, strict=True)]

    def finish(self, results: Sequence[_Source]) -> Graph:
        for item, result, kind in zip(self.program.outputs, results, self.program.output_types, strict=True):
            dims, value = self.axes.dims[item.operands[0]], result.value
            if result.dims != dims:
                value = self.checker.append(write.reshape(value, kind.shape))[0]
            self.checker.append(Node("output", (value,), item.attributes))
        return Graph.of_checked(self.checker)


def _with_threads(block: Graph) -> Graph:
    """A block with threads enough for its products or rows, in a cluster of thread blocks where one cannot hold one row.

    What is computed behind a loop of products takes registers, too. Tiles of 128 × 128 in bfloat16 took 231 µs on 8
    warps of an H200 and 335 on 4 with an error function behind, 188 and 208 with a sum.
    """
    if multiplies_tiles(block):
        held = block_work(block).held * (2 if computes_behind(block) else 1)
        return block.in_threads(threads_for(held, block.threads), block.cluster)
    live, threads = live_bytes(block), block.threads
    clusters: list[Graph] = []
    if live > TileLimits().capacity(rows=True):
        clusters = [block.in_threads(threads, 1 << power) for power in range(1, SEARCH.longest_cluster.bit_length())]
        clusters = [each for each in clusters if shared_row(each) is not None]
    if clusters:
        block = next((each for each in clusters if live_bytes(each) <= SEARCH.live_bytes_in_cluster), clusters[-1])
        live = live_bytes(block)
    primitive = expanded(block)
    threads = threads_of_rows(primitive, live, [kind.shape for kind in primitive.types], threads)
    return block.in_threads(threads, block.cluster)


def threads_of_rows(block: Graph, live: int, shapes: Sequence[Shape], threads: int = Graph.threads) -> int:
    """The threads of a block of primitive ops without tl.dot, whose tiles take so many bytes of registers: `threads`, or twice
    as many; fewer that hold them where more than two warps would share a reduction."""
    has_products = any(item.kind is Kind.MATMUL for item in block.nodes)
    most = SEARCH.live_bytes_of_row if has_products else SEARCH.live_bytes_of_thread
    while threads < WARP * MOST_WARPS and live > threads * most:
        threads *= 2
    if has_products:
        return threads
    fewest = max(2 * WARP, live / SEARCH.live_bytes_of_few_threads)
    while threads // 2 >= fewest and crosses_warps(block, shapes, threads):
        threads //= 2
    return threads


def _shape(dims: Dims, sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(sizes[axis] for axis in dim) for dim in dims)


def _one_axis_each(dims: Dims) -> Dims:
    """The view in which every dim has at most one axis."""
    result: list[Dim] = []
    for dim in dims:
        result += [(axis,) for axis in dim] or [()]
    return tuple(result)


class _BlockWriter:
    """Writes the block graph of a structure."""

    def __init__(
        self, writer: _KernelGraphWriter, structure: Structure, tiling: Tiling, dtypes: Sequence[DType], loads: Sequence[Dims]
    ) -> None:
        self.structure, self.axes, self.tiling = structure, writer.axes, tiling
        self.spread_axis = len(self.axes.sizes)  # the dim of partial results
        grid = tiling.grid or (((), 1),)
        self.checker = Checker(Level.BLOCK, tuple(blocks for _, blocks in grid), tiling.loop)
        self.gridded = [axes for axes, _ in grid]
        self.layouts: list[Dims] = []  # of every value of the block graph
        self.tiles: list[dict[int, int]] = []  # the extent of each axis in the tile of every value
        self.place: list[int] = []  # the value of every load and step
        self.stored: list[Dims] = []  # of every output
        self.dtypes, self.loads = dtypes, loads

    def append(self, item: Node, layout: Dims) -> int:
        [value] = self.checker.append(item)
        self.layouts.append(layout)
        extents = {axis: self.tiles[i][axis] for i in item.operands for dim in self.layouts[i] for axis in dim}
        self.tiles.append(extents)
        return value

    def build(self, stores: Sequence[_Store]) -> Graph:
        looped = self.structure.split.looped
        for load, dtype, layout in zip(self.structure.loads, self.dtypes, self.loads, strict=True):
            dim_of = {axis: place for place, dim in enumerate(layout) for axis in dim}
            imap = self.grid_map(dim_of)
            fmap = dim_of[looped] if load.looped and looped is not None else REPLICATED
            shape = _shape(layout, self.tiling.sizes)
            self.place.append(self.append(node("input", shape=shape, dtype=str(dtype), imap=imap, fmap=fmap), layout))
            tile = self.checker.types[-1].shape
            self.tiles[-1] = {axis: extent for dim, extent in zip(layout, tile, strict=True) for axis in dim}
        for step in self.structure.steps:
            self.place.append(self.step(step))
        for position, store in zip(self.structure.outputs, stores, strict=True):
            self.store(self.place[position], store)
        return Graph.of_checked(self.checker)

    def tiles_by_axes(self) -> tuple[tuple[tuple[tuple[int, bool], ...], ...], ...]:
        """For each dim of every tile its axes, and whether the loop splits them."""
        looped, loop = self.structure.split.looped, self.tiling.loop
        piece = None if looped is None or loop == 1 else self.tiling.tiles[1][looped]
        return tuple(
            tuple(tuple((axis, axis == looped and tile[axis] == piece) for axis in dim) for dim in layout)
            for layout, tile in zip(self.layouts, self.tiles, strict=True)
        )

    def store(self, value: int, store: _Store) -> None:
        """Store a value in device memory; a partial result gets the split-K axis as a new leading dim."""
        dims = _one_axis_each(self.layouts[value]) if store.dims is None else store.dims
        value = self.rearrange(value, dims)
        split_axis = self.structure.split.grid_axis if store.dims is None else None
        dim_of = {axis: place for place, dim in enumerate(dims) for axis in dim}
        if split_axis is not None:
            dim_of[split_axis] = NEW_DIM
        dtype = None if self.checker.types[value].dtype is store.dtype else str(store.dtype)
        omap = self.grid_map(dim_of)
        self.checker.append(node("output", value, omap=omap, dtype=dtype))
        self.stored.append(dims if split_axis is None else ((self.spread_axis,), *dims))

    def grid_map(self, dim_of: Mapping[int, int]) -> tuple[int, ...]:
        """For every grid dim the dim of a tensor that it splits."""
        return tuple(next((dim_of[axis] for axis in axes if axis in dim_of), REPLICATED) for axes in self.gridded)

    def step(self, step: Step) -> int:
        operands = [self.place[i] for i in step.operands]
        row = OPS[step.op]
        match row.kind:
            case Kind.REDUCTION:
                return self.reduce(step, operands[0])
            case Kind.MATMUL:
                return self.matmul(step, *operands)
            case Kind.ACCUMULATOR:
                return self.append(node(step.op, *operands), self.layouts[operands[0]])
            case _:
                if len(operands) > 1:
                    operands = self.align(operands)
                if step.op in WRAPPING:
                    operands = list(map(self.widened, operands))
                layout = _wider(*(self.layouts[i] for i in operands))
                constants = dict(zip(row.attributes, step.constants, strict=True))
                return self.append(node(step.op, *operands, **constants), layout)

    def reduce(self, step: Step, x: int) -> int:
        for axis in step.reduced:
            if len(next(dim for dim in self.layouts[x] if axis in dim)) > 1:
                x = self.rearrange(x, _one_axis_each(self.layouts[x]))
            dim = self.layouts[x].index((axis,))
            op, cut = step.op, self.checker.cuts.get(x, {dim: None})[dim]
            if op == "mean" and cut is not None:  # a part counts by its extent: the mean over parts is that of the whole
                op, parts = "sum", ceil(cut.extent / cut.part)
                x = self.append(node("scale", x, factor=Fraction(parts, cut.extent)), self.layouts[x])
            x = self.append(node(op, x, dim=dim), self.layouts[x][:dim] + ((),) + self.layouts[x][dim + 1 :])
        return x

    def widened(self, value: int) -> int:
        """An integer of fewer bits in 32: a product written as a multiplication and a sum is exact."""
        dtype = self.checker.types[value].dtype
        if not dtype.is_integer or dtype.itemsize >= 4:
            return value
        return self.append(write.cast(value, DType.int32), self.layouts[value])

    def align(self, operands: list[int]) -> list[int]:
        """Make operands broadcast against each other by NumPy's rule."""
        layouts = [self.layouts[i] for i in operands]
        if _broadcasts(*layouts):
            return operands
        axes = frozenset[int]().union(*map(_axes_of, layouts))
        reference = next((self.layouts[i] for i in operands if _axes_of(self.layouts[i]) == axes), None) or self.reference(axes)
        return [
            self.rearrange(i, tuple(dim if set(dim) <= _axes_of(self.layouts[i]) else () for dim in _one_axis_each(reference)))
            for i in operands
        ]

    def reference(self, axes: frozenset[int]) -> Dims:
        """The dims of some value of the program that has these axes, without the others."""
        lead: Dims = ((self.spread_axis,),) if self.spread_axis in axes else ()
        axes -= {self.spread_axis}
        for value in range(len(self.axes.dims)):
            if axes <= self.axes.of(value):
                return lead + tuple((axis,) for dim in self.axes.dims[value] for axis in dim if axis in axes)
        raise AssertionError("the search combines only axes of one value of the program")

    def matmul(self, step: Step, left: int, right: int) -> int:
        """[batch…, m, k] @ [batch…, k, n], with m and n in the order in which the program has them."""
        contracted = tuple(step.reduced)
        left_axes, right_axes = _axes_of(self.layouts[left]), _axes_of(self.layouts[right])
        order = [axis for dim in self.reference((left_axes | right_axes) - set(contracted)) for axis in dim]
        own_left = [axis for axis in order if axis not in right_axes]
        own_right = [axis for axis in order if axis not in left_axes]
        if own_left and own_right and order.index(own_left[-1]) > order.index(own_right[-1]):
            left, right, own_left, own_right = right, left, own_right, own_left
        rows, columns = own_left[-1:], own_right[-1:]
        batch = [axis for axis in order if axis not in (*rows, *columns)]
        k = self._contracted_order(contracted, left, right)
        m: Dim = tuple(rows)
        n: Dim = tuple(columns)
        if not batch and not self._has_leading(left) and not self._has_leading(right):
            lead: Dims = ()
        else:
            lead = tuple((axis,) for axis in batch) or ((),)
        left = self.rearrange(left, (*self._present(lead, left), m, k))
        right = self.rearrange(right, (*self._present(lead, right), k, n))
        return self.append(write.matmul(left, right), (*lead, m, n))

    def _has_leading(self, value: int) -> bool:
        return len(self.layouts[value]) > 2

    def _present(self, lead: Dims, value: int) -> Dims:
        return tuple(dim if set(dim) <= _axes_of(self.layouts[value]) else () for dim in lead)

    def _contracted_order(self, contracted: tuple[int, ...], *operands: int) -> Dim:
        """Contracted axes in the order of an operand that has them in one dim, else of the first operand."""
        for operand in operands:
            for dim in self.layouts[operand]:
                if set(dim) == set(contracted):
                    return dim
        return tuple(axis for dim in self.layouts[operands[0]] for axis in dim if axis in contracted)

    def rearrange(self, value: int, wanted: Dims) -> int:
        """The value with its axes in the wanted dims."""
        if self.layouts[value] == wanted:
            return value
        now = tuple((axis,) for dim in self.layouts[value] for axis in dim)
        then = tuple((axis,) for dim in wanted for axis in dim)
        assert {dim[0] for dim in now} == {dim[0] for dim in then}, "rearranging keeps axes"
        if now != then:
            if self.layouts[value] != now:
                value = self.reshape(value, now)
            value = self.append(write.transpose(value, tuple(now.index(dim) for dim in then)), then)
        return value if self.layouts[value] == wanted else self.reshape(value, wanted)

    def reshape(self, value: int, wanted: Dims) -> int:
        shape = tuple(prod(self.tiles[value][axis] for axis in dim) for dim in wanted)
        return self.append(write.reshape(value, shape), wanted)


def _axes_of(layout: Dims) -> frozenset[int]:
    return frozenset(axis for dim in layout for axis in dim)


def _broadcasts(*layouts: Dims) -> bool:
    aligned = zip_longest(*map(reversed, layouts), fillvalue=())
    if any(len({dim for dim in dims if dim}) > 1 for dims in aligned):
        return False
    combined = _wider(*layouts)
    flat = [axis for dim in combined for axis in dim]
    return len(flat) == len(set(flat))


def _wider(*layouts: Dims) -> Dims:
    """The layout of a broadcast."""
    rank = max(map(len, layouts))
    padded = [((),) * (rank - len(layout)) + layout for layout in layouts]
    return tuple(next((dim for dim in dims if dim), ()) for dims in zip(*padded, strict=True))
