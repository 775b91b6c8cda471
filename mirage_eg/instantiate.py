"""Choosing the numbers: for a structure the grid, the loop count and so all tile extents (DESIGN §8).

Parallel axes, those that an output has and no op reduces, may be split over the grid; the looped axis is split by the loop, a
spread axis by the grid of the first kernel. Tiles are powers of two (or the whole axis) under limits of shared memory and
registers; the cost model ranks what is left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

from mirage_eg.devices import Device
from mirage_eg.estimate import Estimate, Shape
from mirage_eg.ir.axes import Axes, resize
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.realize import Extents, Outline, realize, realize_outlined
from mirage_eg.room import does_fit, may_fit
from mirage_eg.shared_memory import shared_memory
from mirage_eg.space import Chain, Structure

MAX_GRID_DIMS = 3
_COMBINING_OPTIONS = 2  # extents tried of a kernel that reduces partial results
_SMALL_TILES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


@dataclass(frozen=True, slots=True)
class Filters:
    """Restrictions on block graphs; None admits everything. Maps are compared in the order of loads and outputs."""

    griddims: tuple[tuple[int, ...], ...] | None = None
    imaps: tuple[tuple[int, ...], ...] | None = None
    omaps: tuple[tuple[int, ...], ...] | None = None
    fmaps: tuple[int, ...] | None = None
    franges: tuple[int, ...] | None = None

    def admit(self, block: Graph) -> bool:
        """Whether a block graph is among those asked for."""
        grid = _trimmed(block.grid)
        return (
            (self.griddims is None or grid in {_trimmed(wanted) for wanted in self.griddims})
            and (self.franges is None or block.loop in self.franges)
            and (self.imaps is None or all(_prefix(item["imap"], self.imaps) for item in block.inputs))
            and (self.omaps is None or all(_prefix(item["omap"], self.omaps) for item in block.outputs))
            and (self.fmaps is None or all(item["fmap"] in self.fmaps for item in block.inputs))
        )


def _trimmed(grid: Sequence[int]) -> tuple[int, ...]:
    """A grid without trailing extents of 1."""
    extents = list(grid)
    while len(extents) > 1 and extents[-1] == 1:
        extents.pop()
    return tuple(extents)


def _prefix(got: tuple[int, ...], wanted: Sequence[tuple[int, ...]]) -> bool:
    return any(got == entry[: len(got)] for entry in wanted)


def small_instance(plan: Structure | Chain, program: Graph, axes: Axes) -> tuple[Graph, Graph]:
    """The program and the plan's µGraph at distinct small sizes, so that no two sizes agree by accident."""
    kernels = _kernels(plan, program, axes)
    gridded = [kernel.parallel[: MAX_GRID_DIMS - (kernel.spread is not None)] for kernel in kernels]
    sizes: list[int] = []
    tiles = iter(_SMALL_TILES)
    for axis in range(len(axes.sizes)):
        cut = 2 if axis == plan.split.spread or any(axis in group for chosen in gridded for group in chosen) else 1
        sizes.append(cut * (3 if axis == plan.split.looped else 1) * next(tiles))
    small = resize(program, axes, sizes)
    extents = [
        kernel.extents((*sizes, 2), {group[0]: sizes[group[0]] // 2 for group in chosen}, 3, 2)
        for kernel, chosen in zip(kernels, gridded, strict=True)
    ]
    return small, realize(plan, small, axes, *extents)


@dataclass(frozen=True, slots=True)
class TileLimits:
    """What a block may hold: bytes of shared memory for staged matmul operands, bytes of registers for tiles in float32.

    `open_too`: what the model of shared memory leaves open fits for now; `really_fits` asks the compiler.
    """

    shared_memory: int = 220 * 1024
    registers: int = 160 * 1024
    max_tile: int = 256  # of a parallel axis
    stages: int = 2
    multiprocessors: int = 132
    target: str = "sm_90"
    open_too: bool = False


def instances(
    plan: Structure | Chain, program: Graph, axes: Axes, limits: TileLimits | None = None, filters: Filters | None = None
) -> Iterator[Graph]:
    """The µGraphs that a plan stands for at the program's sizes, under the limits and filters (of the first kernel)."""
    instantiation = Instantiation(plan, program, axes, limits, filters)
    for extents in instantiation.extents():
        graph = instantiation.build(extents)
        if instantiation.is_asked_for(graph) and instantiation.fits(graph):
            yield graph


@dataclass(frozen=True, slots=True)
class Choice:
    """The extents of a plan's kernels, and what they cost at least on a device, in microseconds."""

    us: float
    extents: tuple[Extents, ...]

    def holds(self, other: "Choice") -> bool:
        """Whether no tile is smaller than that of another choice: where that one does not fit, this one does not either."""
        return all(map(_holds, self.extents, other.extents))


def _holds(larger: Extents, smaller: Extents) -> bool:
    blocks = dict(smaller.grid)
    return larger.loop <= smaller.loop and all(count <= blocks.get(group, 1) for group, count in larger.grid)


class Instantiation:
    """The extents of one plan at the sizes of a program, each built on demand."""

    def __init__(
        self,
        plan: Structure | Chain,
        program: Graph,
        axes: Axes,
        limits: TileLimits | None = None,
        filters: Filters | None = None,
    ) -> None:
        self.plan, self.program, self.axes = plan, program, axes
        self.limits, self.filters = limits or TileLimits(), filters or Filters()
        self._kernels = _kernels(plan, program, axes)
        self._too_large: list[Choice] = []
        self._outlines: tuple[Outline, ...] = ()  # of the kernels, once they have been built

    def extents(self) -> list[tuple[Extents, ...]]:
        """All choices that may fit."""
        return _choices(self.plan, self._kernels, self.axes, self.limits, self.filters)

    def build(self, extents: Sequence[Extents]) -> Graph:
        """The µGraph at these extents."""
        return realize(self.plan, self.program, self.axes, *extents)

    def is_asked_for(self, graph: Graph) -> bool:
        """Whether the filters admit a µGraph."""
        return self.filters.admit(blocks_of(graph)[0])

    def fits(self, graph: Graph) -> bool:
        """Whether blocks hold their tiles."""
        return all(fits(block, self.limits) for block in blocks_of(graph))

    def really_fits(self, graph: Graph) -> bool:
        """The same, by the compiler where the model leaves it open."""
        return really_fits(graph, self.limits)

    def choices(self, device: Device) -> list[Choice]:
        """All choices that may fit, the most promising first."""
        inputs = [kind.dtype for kind in self.program.input_types]
        outputs = [kind.dtype for kind in self.program.output_types]
        partials = [DType.float32 for _ in self._kernels[0].structure.outputs]
        chained = len(self._kernels) > 1
        types = [(inputs, partials), ([*inputs, *partials], outputs)] if chained else [(inputs, outputs)]
        chosen = self.extents()
        estimates = [
            Estimate(kernel.structure, kernel.shapes, *dtypes, device)
            for kernel, dtypes in zip(self._kernels, types, strict=True)
        ]
        least: dict[int, float] = {}
        for together in chosen:
            for estimate, extents in zip(estimates, together, strict=True):
                if id(extents) not in least:
                    least[id(extents)] = estimate.us(extents)
        costed = [Choice(sum(least[id(extents)] for extents in together), together) for together in chosen]
        return sorted(costed, key=lambda choice: choice.us)

    def take(self, choice: Choice) -> Graph | None:
        """The µGraph of a choice, if it fits and is asked for; not built where a smaller one has not fitted."""
        if any(choice.holds(other) for other in self._too_large):
            return None
        graph = None
        if not self._has_too_large_tiles(choice):
            graph, outlines = realize_outlined(self.plan, self.program, self.axes, *choice.extents)
            if all(
                kernel.looped is None or extents.loop > 1 for kernel, extents in zip(self._kernels, choice.extents, strict=True)
            ):
                self._outlines = outlines
        if graph is None or not self.fits(graph):
            self.refuse(choice)
            return None
        return graph if self.is_asked_for(graph) else None

    def refuse(self, choice: Choice) -> None:
        """Take no choice any more whose tiles are at least as large."""
        self._too_large.append(choice)

    def _has_too_large_tiles(self, choice: Choice) -> bool:
        """Whether registers cannot hold the tiles, as far as that is known without building them."""
        return any(
            live_bytes(outline.block, outline.shapes(extents)) > self.limits.registers
            for outline, extents in zip(self._outlines, choice.extents, strict=bool(self._outlines))
            if extents.loop > 1 or outline.block.loop == 1
        )


def _choices(
    plan: Structure | Chain, kernels: Sequence["_Kernel"], axes: Axes, limits: TileLimits, filters: Filters
) -> list[tuple[Extents, ...]]:
    """The extents of all kernels together."""
    choices: list[tuple[Extents, ...]] = []
    for spread in _spread_counts(axes.sizes[plan.split.spread], limits) if plan.split.spread is not None else [1]:
        options = [_options(kernel, axes, limits, filters, spread) for kernel in kernels]
        if len(options) == 2:
            few, many = limits.multiprocessors // 2, 8 * limits.multiprocessors
            options[0] = [choice for choice in options[0] if few <= prod(blocks for _, blocks in choice.grid) <= many]
            options[1].sort(key=lambda choice: abs(prod(blocks for _, blocks in choice.grid) - 2 * limits.multiprocessors))
            alike = [(first, last) for first in options[0] if (last := _in_groups(first, kernels[0], options[1])) is not None]
            del options[1][_COMBINING_OPTIONS:]
            choices += [together for together in alike if together[1] not in options[1]]
        choices += product(*options)
    return choices


def _in_groups(first: Extents, kernel: "_Kernel", options: Sequence[Extents]) -> Extents | None:
    """The extents of a combining kernel whose blocks each read what one group of blocks stored: both can be one kernel."""
    grid = tuple((group, count) for group, count in first.grid if group != (kernel.spread,))
    return next((extents for extents in options if extents.grid == grid), None)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One kernel of a plan with what its numbers depend on."""

    structure: Structure
    shapes: tuple[Shape, ...]  # of loads and steps
    parallel: tuple[tuple[int, ...], ...]  # the axes that a grid dim may split, together where no value has two of them
    spread: int | None  # the axis that the grid must split
    looped: int | None

    def extents(self, sizes: tuple[int, ...], tiles: dict[int, int], loop: int, spread: int) -> Extents:
        """Extents with these tiles of the first axis of each parallel group; axes that stay whole get no grid dim."""
        grid = [
            (group, sizes[group[0]] // tiles[group[0]])
            for group in self.parallel
            if tiles.get(group[0], sizes[group[0]]) < sizes[group[0]]
        ]
        if self.spread is not None:
            grid.append(((self.spread,), spread))
        return Extents(sizes, tuple(sorted(grid)), 1 if self.looped is None else loop)


def _kernels(plan: Structure | Chain, program: Graph, axes: Axes) -> list[_Kernel]:
    inputs = [values[0] for item, values in program.numbered() if item.op == "input"]
    sources = [axes.of(value) for value in inputs]
    match plan:
        case Structure():
            return [_kernel(plan, sources, axes, None, plan.split.looped)]
        case Chain(first, last):
            kernel = _kernel(first, sources, axes, first.split.spread, first.split.looped)
            partial = frozenset({len(axes.sizes)})
            sources = sources + [kernel.shapes[output].axes | partial for output in first.outputs]
            return [kernel, _kernel(last, sources, axes, None, None)]


def _kernel(
    structure: Structure, sources: Sequence[frozenset[int]], axes: Axes, spread: int | None, looped: int | None
) -> _Kernel:
    shapes = [Shape(sources[load.input], load.looped) for load in structure.loads]
    for step in structure.steps:
        operands = [shapes[i] for i in step.operands]
        together = frozenset[int]().union(*(operand.axes for operand in operands)) - frozenset(step.reduced)
        shapes.append(Shape(together, any(operand.piece for operand in operands)))
    reduced = {axis for step in structure.steps for axis in step.reduced}
    stored = frozenset[int]().union(*(shapes[output].axes for output in structure.outputs))
    parallel = sorted(stored - reduced - {looped, spread}, key=lambda axis: (-axes.sizes[axis], axis))
    return _Kernel(structure, tuple(shapes), _groups(parallel, shapes), spread, looped)


def _groups(parallel: Sequence[int], shapes: Sequence[Shape]) -> tuple[tuple[int, ...], ...]:
    """Axes that no value has two of are split together: otherwise each block would compute the other's columns again."""
    groups: list[list[int]] = []
    for axis in parallel:
        beside = frozenset[int]().union(*(shape.axes for shape in shapes if axis in shape.axes))
        group = next((group for group in groups if beside.isdisjoint(group)), None)
        if group is None:
            groups.append([axis])
        else:
            group.append(axis)
    return tuple(map(tuple, groups))


def _options(kernel: _Kernel, axes: Axes, limits: TileLimits, filters: Filters, spread: int) -> list[Extents]:
    """The extents of one kernel that a block can hold, as far as that is seen before it is built."""
    sizes = (*axes.sizes, spread)
    dims = MAX_GRID_DIMS - (kernel.spread is not None)
    roles = _matmul_roles(kernel)
    many = len(kernel.parallel) > dims
    tiles = [_group_tiles(group, axes.sizes, limits.max_tile, roles, many) for group in kernel.parallel]
    length = 1
    if kernel.looped is not None:
        length = sizes[kernel.looped] // (spread if kernel.looped == kernel.spread else 1)
    options = []
    for loop in [1] if kernel.looped is None else _loop_counts(length, filters):
        for chosen in product(*tiles):
            tile = {group[0]: first for group, first in zip(kernel.parallel, chosen, strict=True)}
            extents = kernel.extents(sizes, tile, loop, spread)
            if len(extents.grid) <= MAX_GRID_DIMS and _plausible(kernel, extents, limits):
                options.append(extents)
    return options


@cache
def _divisors(size: int) -> tuple[int, ...]:
    return tuple(count for count in range(1, size + 1) if size % count == 0)


def _spread_counts(size: int, limits: TileLimits) -> list[int]:
    """Into how many pieces a spread axis is cut: powers of two that leave at least 32 of it, or any divisors of a small one."""
    divisors = [count for count in _divisors(size) if 2 <= count <= limits.multiprocessors]
    usual = [count for count in divisors if size // count >= 32 and not count & (count - 1)]
    return usual or divisors[:4]


def blocks_of(graph: Graph) -> list[Graph]:
    """The block graphs of a kernel graph."""
    return [item["graph"] for item in graph.nodes if item.op == "block"]


def _matmul_roles(kernel: _Kernel) -> dict[int, str]:
    """For each axis that a matmul has but does not contract: `batch` if always in both operands, else `own`."""
    roles: dict[int, str] = {}
    for step, shape in zip(kernel.structure.steps, kernel.shapes[len(kernel.structure.loads) :], strict=True):
        if step.op == "matmul":
            for axis in shape.axes:
                own = not all(axis in kernel.shapes[i].axes for i in step.operands) or roles.get(axis) == "own"
                roles[axis] = "own" if own else "batch"
    return roles


def _plausible(kernel: _Kernel, extents: Extents, limits: TileLimits) -> bool:
    """A bound before anything is built: no computed tile alone is larger than the registers."""
    blocks = {axis: count for group, count in extents.grid for axis in group}
    for shape in kernel.shapes[len(kernel.structure.loads) :]:
        elements = 1
        for axis in shape.axes:
            loop = extents.loop if axis == kernel.looped and shape.piece else 1
            elements *= extents.sizes[axis] // blocks.get(axis, 1) // loop
        if elements * 4 > limits.registers:
            return False
    return True


def _group_tiles(group: Sequence[int], sizes: Sequence[int], most: int, roles: dict[int, str], many: bool) -> list[int]:
    """Tiles of the first axis of a group whose number of blocks divides the other axes too."""
    first, *others = group
    tiles = _tile_sizes(sizes[first], most, roles.get(first), many)
    fitting = [tile for tile in tiles if all(sizes[axis] % (sizes[first] // tile) == 0 for axis in others)]
    return fitting or [sizes[first]]


def _tile_sizes(size: int, most: int, role: str | None, many: bool) -> list[int]:
    """Tiles of a parallel axis: divisors that are powers of two, or the whole axis, up to `most`.

    A batch axis of matmuls is cut into single slices (or not at all, where there are more axes than grid dims); another axis
    of a matmul is not cut below the 16 that it pads to.
    """
    if role == "batch":
        return [1, size] if many and size > 1 else [1]
    divisors = [tile for tile in _divisors(size) if tile <= most]
    least = min(16, size) if role == "own" else 1
    usual = [tile for tile in divisors if tile >= least and (tile & (tile - 1) == 0 or tile == size)]
    return usual or divisors[-1:]


def _loop_counts(size: int, filters: Filters) -> list[int]:
    """Loop counts that leave tiles of 16 to 512, or any divisors where the axis is smaller or filters ask for them."""
    divisors = _divisors(size)
    if filters.franges is not None:
        return [count for count in divisors if count in filters.franges]
    usual = [
        count for count in divisors if count > 1 and 16 <= size // count <= 512 and not size // count & (size // count - 1)
    ]
    return usual or [count for count in divisors if count > 1]


def _padded(extent: int, least: int = 1) -> int:
    return max(least, 1 << (extent - 1).bit_length())


def fits(block: Graph, limits: TileLimits) -> bool:
    """Whether the tiles fit: what is live at once in registers, staged matmul operands in shared memory."""
    has_room = may_fit if limits.open_too else _fits_as_guessed
    return live_bytes(block) <= limits.registers and has_room(block, limits.shared_memory, limits.stages, limits.target)


def really_fits(graph: Graph, limits: TileLimits) -> bool:
    """Whether the blocks of a µGraph whose tiles may fit have the shared memory, by the compiler where that is open."""
    return all(does_fit(block, limits.shared_memory, limits.stages, limits.target) for block in blocks_of(graph))


def _fits_as_guessed(block: Graph, limit: int, stages: int, target: str) -> bool:
    return shared_memory(block, stages, target=target) <= limit


def footprint(block: Graph, limits: TileLimits) -> tuple[int, int]:
    """Bytes of shared memory and of registers that a block needs."""
    return shared_memory(block, limits.stages, target=limits.target), live_bytes(block)


def live_bytes(block: Graph, shapes: Sequence[Sequence[int]] | None = None) -> int:
    """The most bytes of float32 tiles that are live at once; a load that only a matmul reads goes through shared memory.

    `shapes` are those of the tiles, the block graph's own if not given.
    """
    shapes = [kind.shape for kind in block.types] if shapes is None else shapes
    last: dict[int, int] = {}
    through_shared = set(range(len(block.types)))
    for position, item in enumerate(block.nodes):
        for operand in item.operands:
            last[operand] = position
            if item.op != "matmul":
                through_shared.discard(operand)
    live = most = 0
    alive: dict[int, int] = {}
    accumulators = 0
    for position, (item, values) in enumerate(block.numbered()):
        for value in values:
            if item.op == "input" and value in through_shared:
                continue
            size = prod(map(_padded, shapes[value])) * 4
            if OPS[item.op].kind is Kind.ACCUMULATOR:
                accumulators += size
            else:
                alive[value] = size
        live = sum(alive.values()) + accumulators
        most = max(most, live)
        alive = {value: size for value, size in alive.items() if last.get(value, -1) > position}
    return most
