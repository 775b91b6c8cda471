"""Choosing the numbers: for a structure the grid, the loop count and so all tile extents (DESIGN §8).

Parallel axes, those that no op reduces and every output has, may be split over the grid; the looped axis is split by the loop.
Tiles are powers of two (or the whole axis) under limits of shared memory and registers; the cost model ranks what is left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from mirage_eg.ir.axes import Axes, resize
from mirage_eg.ir.graph import Graph, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.realize import Extents, realize
from mirage_eg.space import Structure

MAX_GRID_DIMS = 3
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


def parallel_axes(structure: Structure, program: Graph, axes: Axes) -> tuple[int, ...]:
    """The axes that the grid may split: in every output, reduced by no step, largest first."""
    common = frozenset.intersection(*(axes.of(item.operands[0]) for item in program.outputs))
    reduced = {axis for step in structure.steps for axis in step.reduced}
    looped = {structure.split.looped}
    return tuple(sorted(common - reduced - looped, key=lambda axis: (-axes.sizes[axis], axis)))


def small_instance(structure: Structure, program: Graph, axes: Axes) -> tuple[Graph, Graph]:
    """The program and the structure's µGraph at distinct small sizes, so that no two sizes agree by accident."""
    gridded = parallel_axes(structure, program, axes)[:MAX_GRID_DIMS]
    sizes = []
    tiles = iter(_SMALL_TILES)
    for axis in range(len(axes.sizes)):
        parts = 2 if axis in gridded else 3 if axis == structure.split.looped else 1
        sizes.append(parts * next(tiles))
    loop = 1 if structure.split.looped is None else 3
    small = resize(program, axes, sizes)
    return small, realize(structure, small, axes, Extents(tuple(sizes), tuple((axis, 2) for axis in gridded), loop))


@dataclass(frozen=True, slots=True)
class TileLimits:
    """What a block may hold: bytes of shared memory for staged matmul operands, bytes of registers for tiles in float32."""

    shared_memory: int = 220 * 1024
    registers: int = 160 * 1024
    max_tile: int = 256  # of a parallel axis
    stages: int = 2


def instances(
    structure: Structure,
    program: Graph,
    axes: Axes,
    limits: TileLimits | None = None,
    filters: Filters | None = None,
) -> Iterator[Graph]:
    """The µGraphs that a structure stands for at the program's sizes, under the limits and filters."""
    limits, filters = limits or TileLimits(), filters or Filters()
    gridded = parallel_axes(structure, program, axes)
    looped = structure.split.looped
    loops = [1] if looped is None else _loop_counts(axes.sizes[looped], filters)
    shapes = _shapes(structure, program, axes)
    roles = _matmul_roles(structure, shapes)
    many = len(gridded) > MAX_GRID_DIMS
    tiles = [_tile_sizes(axes.sizes[axis], limits.max_tile, roles.get(axis), many) for axis in gridded]
    for loop in loops:
        for chosen in product(*tiles):
            grid = tuple(
                (axis, axes.sizes[axis] // tile) for axis, tile in zip(gridded, chosen, strict=True) if tile < axes.sizes[axis]
            )
            if len(grid) > MAX_GRID_DIMS:
                continue
            grid = tuple(sorted(grid))
            if not _plausible(structure, shapes, axes, dict(zip(gridded, chosen, strict=True)), loop, limits):
                continue
            graph = realize(structure, program, axes, Extents(axes.sizes, grid, loop))
            block = block_of(graph)
            if filters.admit(block) and fits(block, limits):
                yield graph


def block_of(graph: Graph) -> Graph:
    """The block graph of a kernel graph with one block."""
    [block] = (item["graph"] for item in graph.nodes if item.op == "block")
    assert isinstance(block, Graph)
    return block


@dataclass(frozen=True, slots=True)
class _Shape:
    """The axes of a load or step; `piece` where the looped axis is cut by the loop."""

    axes: frozenset[int]
    piece: bool


def _shapes(structure: Structure, program: Graph, axes: Axes) -> list[_Shape]:
    inputs = [values[0] for item, values in program.numbered() if item.op == "input"]
    shapes = [_Shape(axes.of(inputs[load.input]), load.looped) for load in structure.loads]
    for step in structure.steps:
        operands = [shapes[i] for i in step.operands]
        together = frozenset[int]().union(*(operand.axes for operand in operands)) - frozenset(step.reduced)
        shapes.append(_Shape(together, any(operand.piece for operand in operands)))
    return shapes


def _matmul_roles(structure: Structure, shapes: Sequence[_Shape]) -> dict[int, str]:
    """For each axis that a matmul has but does not contract: `batch` if always in both operands, else `own`."""
    roles: dict[int, str] = {}
    for step, shape in zip(structure.steps, shapes[len(structure.loads) :], strict=True):
        if step.op == "matmul":
            for axis in shape.axes:
                own = not all(axis in shapes[i].axes for i in step.operands) or roles.get(axis) == "own"
                roles[axis] = "own" if own else "batch"
    return roles


def _plausible(
    structure: Structure, shapes: Sequence[_Shape], axes: Axes, tiles: dict[int, int], loop: int, limits: TileLimits
) -> bool:
    """A bound before anything is built: no computed tile alone is larger than the registers."""
    looped = structure.split.looped
    for shape in shapes[len(structure.loads) :]:
        elements = prod(
            axes.sizes[axis] // loop if axis == looped and shape.piece else tiles.get(axis, axes.sizes[axis])
            for axis in shape.axes
        )
        if elements * 4 > limits.registers:
            return False
    return True


def _tile_sizes(size: int, most: int, role: str | None, many: bool) -> list[int]:
    """Tiles of a parallel axis: divisors that are powers of two, or the whole axis, up to `most`.

    A batch axis of matmuls is cut into single slices (or not at all, where there are more axes than grid dims); another axis
    of a matmul is not cut below the 16 that it pads to.
    """
    if role == "batch":
        return [1, size] if many and size > 1 else [1]
    divisors = [tile for tile in range(1, min(size, most) + 1) if size % tile == 0]
    least = min(16, size) if role == "own" else 1
    usual = [tile for tile in divisors if tile >= least and (tile & (tile - 1) == 0 or tile == size)]
    return usual or divisors[-1:]


def _loop_counts(size: int, filters: Filters) -> list[int]:
    """Loop counts that leave tiles of 16 to 512, or any divisors where the axis is smaller or filters ask for them."""
    divisors = [count for count in range(1, size + 1) if size % count == 0]
    if filters.franges is not None:
        return [count for count in divisors if count in filters.franges]
    usual = [
        count for count in divisors if count > 1 and 16 <= size // count <= 512 and not size // count & (size // count - 1)
    ]
    return usual or [count for count in divisors if count > 1]


def _padded(extent: int, least: int = 1) -> int:
    return max(least, 1 << (extent - 1).bit_length())


def fits(block: Graph, limits: TileLimits) -> bool:
    """Whether the tiles fit: staged matmul operands in shared memory, all that is live at once in registers.

    Tiles are padded to powers of two, and to 16 in the dims of a matmul, as the lowering pads them.
    """
    operands = {i for item in block.nodes if item.op == "matmul" for i in item.operands}
    shared = 0
    for value in operands:
        shape = block.types[value].shape
        elements = prod(map(_padded, shape[:-2])) * _padded(shape[-2], 16) * _padded(shape[-1], 16)
        stages = limits.stages if block.phases[value] is Phase.LOOP else 1
        shared += elements * block.types[value].dtype.itemsize * stages
    return shared <= limits.shared_memory and _live_bytes(block) <= limits.registers


def _live_bytes(block: Graph) -> int:
    """The most bytes of float32 tiles that are live at once; a load that only a matmul reads goes through shared memory."""
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
            size = prod(map(_padded, block.types[value].shape)) * 4
            if OPS[item.op].kind is Kind.ACCUMULATOR:
                accumulators += size
            else:
                alive[value] = size
        live = sum(alive.values()) + accumulators
        most = max(most, live)
        alive = {value: size for value, size in alive.items() if last.get(value, -1) > position}
    return most
