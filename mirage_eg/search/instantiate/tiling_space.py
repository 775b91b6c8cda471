"""The tilings of a structure's kernels (grid and loop count, which determine the tile sizes) but those that cannot fit.

Parallel axes (axes of an output that no op reduces) may be split over the grid; the looped axis is split by the loop, a split-K
axis by the grid of the first kernel. Tiles are powers of two (or the whole axis); if the tile does not divide an axis, the last
part has the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import product
from math import isqrt, prod

from mirage_eg.ir.axes import Axes, is_vector_product
from mirage_eg.ir.checker import MAX_GRID_DIMS
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.ragged import part_extent
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.instantiate.limits import Filters, TileLimits
from mirage_eg.search.instantiate.tiling import TileAxes, Tiling
from mirage_eg.search.structure import SplitReduction, Structure

_LONG_PARTS = 16  # of a multiprocessor at most: a last round of few blocks then costs little (KL divergence on an H200)


@dataclass(frozen=True, slots=True)
class TiledKernel:
    """One kernel with the axes on which its tilings depend."""

    structure: Structure
    shapes: tuple[TileAxes, ...]  # of loads and steps
    largest: tuple[TileAxes, ...]  # those of steps of which one is the largest at any sizes
    parallel: tuple[tuple[int, ...], ...]  # the axes that a grid dim may split, together where no value has two of them
    split_axis: int | None  # the axis that the grid must split
    looped: int | None
    equal: frozenset[int]  # axes that are cut into equal parts or not at all: a product contracts them together with others
    of_vectors: bool  # all its products, if it has any, are with vectors

    def tiling(self, sizes: tuple[int, ...], tiles: dict[int, int], loop: int, split_count: int) -> Tiling:
        """The tiling with these tiles of the first axis of each parallel group; whole axes get no grid dim."""
        chosen = tuple(tiles.get(group[0], sizes[group[0]]) for group in self.parallel)
        grid = _grid(self.parallel, self.split_axis, sizes, chosen, split_count)
        return Tiling(sizes, grid, self.looped, 1 if self.looped is None else loop)


Grid = tuple[tuple[tuple[int, ...], int], ...]


def _grid(
    parallel: Sequence[tuple[int, ...]], split_axis: int | None, sizes: Sequence[int], tiles: Sequence[int], blocks: int
) -> Grid:
    counts = [-(-sizes[group[0]] // tile) for group, tile in zip(parallel, tiles, strict=True)]
    grid = [(group, count) for group, count in zip(parallel, counts, strict=True) if count > 1]
    if split_axis is not None:
        grid.append(((split_axis,), blocks))
    return tuple(sorted(grid))


def tilings_of(kernels: Sequence[TiledKernel], axes: Axes, limits: TileLimits, filters: Filters) -> list[tuple[Tiling, ...]]:
    """The combinations of tilings of all kernels."""
    choices: list[tuple[Tiling, ...]] = []
    for split_count in _split_counts(kernels[0], axes, limits):
        options = [_options(kernel, axes, limits, filters, split_count) for kernel in kernels]
        if len(options) == 2:
            few, many = limits.multiprocessors // 2, max(8 * limits.multiprocessors, split_count)
            options[0] = [choice for choice in options[0] if few <= prod(blocks for _, blocks in choice.grid) <= many]
            options[1].sort(key=partial(_unfit, kernels[1], limits))
            pairs = [(first, last) for first in options[0] if (last := _in_groups(first, kernels[0], options[1])) is not None]
            del options[1][SEARCH.combining_tilings :]
            choices += [pair for pair in pairs if pair[1] not in options[1]]
        choices += product(*options)
    return choices


def _unfit(kernel: TiledKernel, limits: TileLimits, tiling: Tiling) -> tuple[bool, int]:
    """How unfit a tiling of a combining kernel is: tiles that take most registers, then a grid far from two rounds."""
    large = 4 * _largest_tile(kernel, tiling) > limits.registers // SEARCH.combining_tiles
    return large, abs(prod(blocks for _, blocks in tiling.grid) - 2 * limits.multiprocessors)


def _in_groups(first: Tiling, kernel: TiledKernel, options: Sequence[Tiling]) -> Tiling | None:
    """The tiling of a combining kernel with the grid of the first but for the split axis: a block reads one group's results."""
    grid = tuple((group, count) for group, count in first.grid if group != (kernel.split_axis,))
    return next((tiling for tiling in options if tiling.grid == grid), None)


def kernels_of(plan: Structure | SplitReduction, program: Graph, axes: Axes) -> list[TiledKernel]:
    """The kernels of a structure, of a program with these axes.

    Raises UnsupportedError: the structure was found for a program with another number of axes.
    """
    sources = [axes.of(value) for value in program.input_values]
    match plan:
        case Structure():
            return [_kernel(plan, sources, axes, None, plan.split.looped)]
        case SplitReduction(first, last):
            kernel = _kernel(first, sources, axes, first.split.grid_axis, first.split.looped)
            partial = frozenset({len(axes.sizes)})
            if all(partial.isdisjoint(step.reduced) for step in last.steps):
                raise UnsupportedError(f"got a program of {len(axes.sizes)} axes, wanted as many as the structure has")
            sources = sources + [kernel.shapes[output].axes | partial for output in first.outputs]
            return [kernel, _kernel(last, sources, axes, None, None)]


def _kernel(
    structure: Structure, sources: Sequence[frozenset[int]], axes: Axes, split_axis: int | None, looped: int | None
) -> TiledKernel:
    shapes = [TileAxes(sources[load.input], load.looped) for load in structure.loads]
    for step in structure.steps:
        operands = [shapes[i] for i in step.operands]
        together = frozenset[int]().union(*(operand.axes for operand in operands)) - frozenset(step.reduced)
        shapes.append(TileAxes(together, any(operand.piece for operand in operands)))
    reduced = {axis for step in structure.steps for axis in step.reduced}
    stored = frozenset[int]().union(*(shapes[output].axes for output in structure.outputs))
    parallel = sorted(stored - reduced - {looped, split_axis}, key=lambda axis: (-axes.sizes[axis], axis))
    computed = {*shapes[len(structure.loads) :]}
    largest = tuple(shape for shape in computed if not any(_is_larger(other, shape) for other in computed))
    merged = [frozenset(step.reduced) for step in structure.steps if step.kind is Kind.MATMUL and len(step.reduced) > 1]
    equal = frozenset[int]().union(*merged)
    products = [[shapes[i].axes for i in step.operands] for step in structure.steps if step.kind is Kind.MATMUL]
    of_vectors = all(is_vector_product(*axes) for axes in products)
    return TiledKernel(structure, tuple(shapes), largest, _groups(parallel, shapes), split_axis, looped, equal, of_vectors)


def _is_larger(one: TileAxes, other: TileAxes) -> bool:
    """Whether a tile is at least as large as another one at any sizes, and has other axes or is no piece of them."""
    return one != other and one.axes >= other.axes and one.piece <= other.piece


def _groups(parallel: Sequence[int], shapes: Sequence[TileAxes]) -> tuple[tuple[int, ...], ...]:
    """Groups of axes of which no value has two, split together: otherwise blocks would compute each other's columns again."""
    groups: list[list[int]] = []
    for axis in parallel:
        together = frozenset[int]().union(*(shape.axes for shape in shapes if axis in shape.axes))
        group = next((group for group in groups if together.isdisjoint(group)), None)
        if group is None:
            groups.append([axis])
        else:
            group.append(axis)
    return tuple(map(tuple, groups))


def _options(kernel: TiledKernel, axes: Axes, limits: TileLimits, filters: Filters, split_count: int) -> list[Tiling]:
    """The tilings of one kernel that pass the bounds of `_plausible`."""
    sizes = (*axes.sizes, split_count)
    dims = MAX_GRID_DIMS - (kernel.split_axis is not None)
    roles = _matmul_roles(kernel)
    many = len(kernel.parallel) > dims
    tiles = [_group_tiles(group, axes.sizes, limits.max_tile, roles, many) for group in kernel.parallel]
    loops = (1,) if kernel.looped is None else tuple(_loop_counts(kernel, kernel.looped, sizes, split_count, filters))
    tried = _all_tilings(kernel.parallel, kernel.split_axis, sizes, tuple(map(tuple, tiles)), kernel.looped, loops, split_count)
    multiplies = any(step.kind is Kind.MATMUL for step in kernel.structure.steps)
    return [tiling for tiling in tried if _plausible(kernel, tiling, limits, multiplies)]


@lru_cache(1024)  # many structures of one grid split have the same
def _all_tilings(
    parallel: tuple[tuple[int, ...], ...],
    split_axis: int | None,
    sizes: tuple[int, ...],
    tiles: tuple[tuple[int, ...], ...],
    looped: int | None,
    loops: tuple[int, ...],
    blocks: int,
) -> tuple[Tiling, ...]:
    grids = [_grid(parallel, split_axis, sizes, chosen, blocks) for chosen in product(*tiles)]
    return tuple(Tiling(sizes, grid, looped, loop) for loop in loops for grid in grids if len(grid) <= MAX_GRID_DIMS)


@cache
def _divisors(size: int) -> tuple[int, ...]:
    small = [count for count in range(1, isqrt(size) + 1) if size % count == 0]
    return tuple(sorted({*small, *(size // count for count in small)}))


def _divides_well(size: int) -> bool:
    """Whether equal tiles suffice: the axis is short, or a multiple of 128."""
    return size <= SEARCH.short_axis or size % SEARCH.even_axis == 0


def _split_counts(kernel: TiledKernel, axes: Axes, limits: TileLimits) -> list[int]:
    """Numbers of parts of a split-K axis: powers of two with parts of at least 32, or any divisors of a short axis.

    Long parts may be several for each multiprocessor: one that has one block waits for most of its loads.
    """
    if kernel.split_axis is None:
        return [1]
    size = axes.sizes[kernel.split_axis]
    ragged = kernel.split_axis not in kernel.equal
    most = max(limits.multiprocessors, min(_LONG_PARTS * limits.multiprocessors, size // SEARCH.least_long_part))
    powers = [1 << power for power in range(1, most.bit_length()) if 1 << power <= most]
    usual = [
        count
        for count in powers
        if size // count >= SEARCH.least_split and (size % count == 0 or (ragged and part_extent(size, count)))
    ]
    if ragged and kernel.looped == kernel.split_axis and not _divides_well(size):
        for tile in SEARCH.looped_tiles[-2:]:
            usual += [max(count for count in _divisors(-(-size // tile)) if count <= limits.multiprocessors)]
        usual = sorted(set(usual) - {1})
    return usual or [count for count in _divisors(size) if 2 <= count <= limits.multiprocessors][:4]


def _matmul_roles(kernel: TiledKernel) -> dict[int, str]:
    """For each axis that a matmul has but does not contract: `batch` if always in both operands, else `own`.

    `rows`, if every such matmul is that of a vector. Of several own axes of an operand the last one is its rows or columns.
    Others of the columns are `batch`, since the lowering has a matrix for each; others of the rows are `leading`, unless they
    are rows or columns elsewhere.
    """
    found: dict[int, set[str]] = {}
    last = set[int]()
    for step, shape in zip(kernel.structure.steps, kernel.shapes[len(kernel.structure.loads) :], strict=True):
        if step.kind is Kind.MATMUL:
            left, right = (kernel.shapes[operand].axes for operand in step.operands)
            ends = sorted(max(own) for own in (shape.axes & left - right, shape.axes & right - left) if own)
            columns = right if ends and ends[-1] in right else left
            last.update(ends)
            own = "rows" if is_vector_product(left, right) else "own"
            for axis in shape.axes:
                is_batch = axis in left & right or (axis in columns and axis not in ends)
                found.setdefault(axis, set()).add("batch" if is_batch else own)
    roles = {axis: next(role for role in ("own", "rows", "batch") if role in roles) for axis, roles in found.items()}
    return {axis: "leading" if role == "own" and axis not in last else role for axis, role in roles.items()}


def _plausible(kernel: TiledKernel, tiling: Tiling, limits: TileLimits, multiplies: bool) -> bool:
    """A bound before lowering: no computed tile alone is larger than the registers, those of a cluster for a single row.

    An iteration without products loads few elements, so that a multiprocessor holds many blocks. What one of products with
    vectors loads fits the registers in float32, since the compiler loads all before it multiplies.
    """
    if tiling.loop > 1 and not multiplies:
        return _loaded(kernel, tiling) <= SEARCH.looped_elements
    if tiling.loop > 1 and kernel.of_vectors and 4 * _loaded(kernel, tiling) > limits.registers:
        return False
    largest, capacity = 4 * _largest_tile(kernel, tiling), limits.capacity(rows=True)
    one_row = not multiplies and largest <= capacity * limits.cluster
    return largest <= capacity or (one_row and _reduces_one_row(kernel, tiling))


def _reduces_one_row(kernel: TiledKernel, tiling: Tiling) -> bool:
    """Whether a block without a product has no loop, and only the axes whole that it reduces."""
    whole, _ = tiling.tiles
    return kernel.looped is None and all(whole[axis] == 1 for group in kernel.parallel for axis in group)


def _loaded(kernel: TiledKernel, tiling: Tiling) -> int:
    """Elements that an iteration loads."""
    _, piece = tiling.tiles
    return sum(
        prod(piece[axis] for axis in shape.axes) for shape in kernel.shapes[: len(kernel.structure.loads)] if shape.piece
    )


def _largest_tile(kernel: TiledKernel, tiling: Tiling) -> int:
    """Elements of the largest computed tile."""
    whole, piece = tiling.tiles
    most = 0
    for shape in kernel.largest:
        elements, of = 1, piece if shape.piece else whole
        for axis in shape.axes:
            elements *= of[axis]
        most = max(most, elements)
    return most


def _group_tiles(group: Sequence[int], sizes: Sequence[int], most: int, roles: dict[int, str], many: bool) -> list[int]:
    """Tiles of the first axis of a group whose number of blocks divides the other axes too."""
    first, *others = group
    role = roles.get(first)
    tiles = _tile_sizes(sizes[first], most if role else most * SEARCH.longer_tiles, role, many)
    counts = {tile: -(-sizes[first] // tile) for tile in tiles}
    return [tile for tile in tiles if all(_splits(sizes[axis], counts[tile]) for axis in others)] or [sizes[first]]


def _splits(size: int, count: int) -> bool:
    """Whether an axis can have so many parts: equal ones, or ragged ones if equal tiles do not suffice."""
    return size % count == 0 or (not _divides_well(size) and part_extent(size, count) is not None)


def _tile_sizes(size: int, most: int, role: str | None, many: bool) -> list[int]:
    """Tiles of a parallel axis: divisors that are powers of two, or the whole axis, up to `most`.

    A batch axis of matmuls is cut into single slices (or not at all, where there are more axes than grid dims); another axis
    of a matmul is not cut below the 16 that it pads to, the rows of a matrix that multiplies a vector not below `least_rows`.
    One that leads the rows may be cut into single slices, too.
    """
    if role == "batch":
        return [1, size] if many and size > 1 else [1]
    divisors = [tile for tile in _divisors(size) if tile <= most]
    least = min({"own": 16, "leading": 16, "rows": SEARCH.least_rows}.get(role or "", 1), size)
    powers = [tile for tile in divisors if tile & (tile - 1) == 0 or tile == size]
    usual = [tile for tile in powers if tile >= least]
    if not _divides_well(size):
        usual += [tile for tile in SEARCH.ragged_tiles if tile < size and tile <= most and tile not in usual]
    if role == "leading" and 1 not in usual:
        usual.insert(0, 1)
    return usual or divisors[-1:]


def _loop_counts(kernel: TiledKernel, looped: int, sizes: Sequence[int], split_count: int, filters: Filters) -> list[int]:
    """Loop counts with tiles of 16 to 512, or any divisors if the axis is shorter or the filters require it.

    Without products it is up to 4,096. That of an axis that a product contracts with others has 16 terms with theirs.
    """
    least = -(-16 // _terms_of_a_place(kernel, looped, sizes))
    blocks = split_count if looped == kernel.split_axis else 1
    size, rest = divmod(sizes[looped], blocks)
    divisors = _divisors(size) if rest == 0 else ()
    ragged = _ragged_loops(kernel, looped, sizes[looped], blocks) if looped not in kernel.equal else {}
    if filters.franges is not None:
        return sorted({count for count in (*divisors, *ragged) if count in filters.franges})
    longest = _looped_tiles(kernel)[-1]
    usual = [
        count
        for count in divisors
        if count > 1 and least <= size // count <= longest and not size // count & (size // count - 1)
    ]
    return usual + list(ragged) or [count for count in divisors if count > 1]


def _looped_tiles(kernel: TiledKernel) -> tuple[int, ...]:
    """Tiles of a looped axis, the longest one last; one row of an iteration without products may be all that it loads."""
    multiplies = any(step.kind is Kind.MATMUL for step in kernel.structure.steps)
    return SEARCH.looped_tiles if multiplies else SEARCH.looped_tiles + SEARCH.long_looped_tiles


def _terms_of_a_place(kernel: TiledKernel, looped: int, sizes: Sequence[int]) -> int:
    """The fewest terms that products contract for one place of the looped axis; 1 where another op reduces it, too."""
    steps = [step for step in kernel.structure.steps if looped in step.reduced]
    terms = [prod(sizes[axis] for axis in step.reduced if axis != looped) for step in steps if step.kind is Kind.MATMUL]
    return min(terms, default=1) if len(terms) == len(steps) else 1


def _ragged_loops(kernel: TiledKernel, looped: int, size: int, blocks: int) -> dict[int, int]:
    """Loop counts with a rest, and their tiles: one for each power of two to which a tile is padded."""
    if _divides_well(size):
        return {}
    loads = zip(kernel.structure.loads, kernel.shapes, strict=False)
    whole = blocks > 1 and any(not load.looped and looped in shape.axes for load, shape in loads)
    loops: dict[int, int] = {}
    for tile in _looped_tiles(kernel):
        counts = [-(-size // part) for part in range(tile, tile // 2, -SEARCH.tile_step)]
        least = max(2, -(-counts[0] // blocks))
        for count in (*(count // blocks for count in counts if count % blocks == 0), *range(least, least + SEARCH.loop_counts)):
            part = part_extent(size, blocks * count)
            if count < 2 or part is None or not tile // 2 < part <= tile:
                continue
            if size % (blocks * count) and not (whole and part_extent(size, blocks) != count * part):
                loops.setdefault(count, part)  # a whole load, if any, has all parts
            if size % (blocks * count) == 0 or count in loops:
                break
    return loops
