"""Layouts: the order of the dims of each intermediate in memory that moves the fewest bytes.

A tile moves whole memory sectors: the shorter its contiguous runs, the more unused bytes it moves. Each access has a time for
each order of the dims of an intermediate. The time of a kernel is the maximum of its accesses to intermediates and of its other
work. A CP-SAT model (OR-tools) minimises the sum over kernels, then the sum over accesses, to proven optimality. No model is
needed if the best order of each intermediate alone makes every kernel as fast as possible. Inputs and outputs keep the caller's
strides. An order that requires a copy of a view between kernels is no candidate. The strides also decide the cost of a
transposed tile and of swapped operands.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import cost_of, kernel_works
from mirage_eg.backends.cost.short_rows import SECTOR
from mirage_eg.backends.launches.placement import declared_strides, placement_of
from mirage_eg.backends.launches.views import shown_at
from mirage_eg.backends.triton.exact_solver import exact_solver
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.node import NEW_DIM, Node, Phase, node
from mirage_eg.ir.op.moves import VIEWS
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.optimizer.heuristics import OPTIMIZER


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """Picoseconds: `access[v][c][k]` of kernel k for value v in order c; `rest[k]` for the other work of kernel k."""

    access: tuple[tuple[tuple[int, ...], ...], ...]
    rest: tuple[int, ...]

    def objective(self, chosen: Sequence[int]) -> tuple[int, int]:
        """The time of all kernels, and the time of all accesses."""
        sums = [sum(orders[c][k] for orders, c in zip(self.access, chosen, strict=True)) for k in range(len(self.rest))]
        return sum(map(max, sums, self.rest)), sum(sums)


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """One intermediate: its shape, the order of its dims in memory (slowest first), and microseconds of its accesses."""

    value: int
    shape: Shape
    order: tuple[int, ...]
    strides: Shape
    us: float
    row_major_us: float


@dataclass(frozen=True, slots=True)
class ChosenLayouts:
    """A µGraph with its layouts, and the objective in microseconds, with these layouts and row-major."""

    graph: Graph
    choices: tuple[LayoutChoice, ...]
    kernels_us: float
    row_major_us: float
    optimal: bool


def choose_layouts(graph: Graph, device: Device) -> ChosenLayouts:
    """The µGraph with the best layout of every intermediate that generated kernels write and read."""
    free = intermediates(graph)
    kernels = [position for position, item in enumerate(graph.nodes) if item.op == "block"]
    blocks = [kernel for kernel in kernel_works(graph) if kernel.op == "block"]
    candidates = {value: candidate_layouts(graph, value) for value in free}
    access = tuple(
        tuple(_accesses(graph, value, strides, kernels, device) for _, strides in candidates[value]) for value in free
    )
    plain = [sum(orders[0][k] for orders in access) for k in range(len(kernels))]
    total = [round(1e6 * cost_of(kernel, device).us) for kernel in blocks]
    problem = LayoutProblem(access, tuple(max(0, whole - own) for whole, own in zip(total, plain, strict=True)))
    chosen, optimal = solve(problem)
    choices = [
        LayoutChoice(value, graph.types[value].shape, *candidates[value][c], sum(orders[c]) / 1e6, sum(orders[0]) / 1e6)
        for value, c, orders in zip(free, chosen, access, strict=True)
    ]
    changed = {choice.value: choice.strides for choice, c in zip(choices, chosen, strict=True) if c}
    before, after = problem.objective([0] * len(free)), problem.objective(chosen)
    return ChosenLayouts(with_strides(graph, changed), tuple(choices), after[0] / 1e6, before[0] / 1e6, optimal)


@lru_cache(maxsize=1024)
def solve(problem: LayoutProblem) -> tuple[tuple[int, ...], bool]:
    """The best order of each value (the first of equal ones), and whether it is proved optimal."""
    alone = tuple(min(range(len(orders)), key=lambda c: (sum(orders[c]), c)) for orders in problem.access)
    least = [sum(min(order[k] for order in orders) for orders in problem.access) for k in range(len(problem.rest))]
    bound = sum(map(max, least, problem.rest))
    if problem.objective(alone)[0] == bound:  # no kernel can be faster, and no sum of accesses less
        return alone, True
    return solve_exactly(problem, alone)


def solve_exactly(problem: LayoutProblem, start: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """`solve` by CP-SAT alone; without a proof the result is the hint `start`."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    picks = [[model.new_bool_var(f"{v} {c}") for c in range(len(orders))] for v, orders in enumerate(problem.access)]
    for v, row in enumerate(picks):
        model.add_exactly_one(row)
        for c, pick in enumerate(row):
            model.add_hint(pick, int(start[v] == c))
    times, sums = [], []
    for k, rest in enumerate(problem.rest):
        terms = [orders[c][k] * pick for orders, row in zip(problem.access, picks, strict=True) for c, pick in enumerate(row)]
        most = rest + sum(max(order[k] for order in orders) for orders in problem.access)
        time = model.new_int_var(rest, max(rest, most), f"kernel {k}")
        model.add(time >= sum(terms))
        times.append(time)
        sums += terms
    solver = exact_solver(4.0)
    model.minimize(sum(times))
    if solver.solve(model) != cp_model.OPTIMAL:
        return start, False
    model.add(sum(times) <= round(solver.objective_value))
    model.minimize(sum(sums))
    if solver.solve(model) != cp_model.OPTIMAL:
        return start, False
    return tuple(next(c for c, pick in enumerate(row) if solver.boolean_value(pick)) for row in picks), True


# --- Orders and accesses -------------------------------------------------------------------------------------------------


def intermediates(graph: Graph) -> list[int]:
    """The values with free strides that generated kernels write and only generated kernels read, directly or through views."""
    declared, views = declared_strides(graph), placement_of(graph).views
    family_of: dict[int, list[int]] = {}  # of a value, its views
    for other, view in views.items():
        family_of.setdefault(view.base, []).append(other)
    free = []
    for item, values in graph.numbered():
        if item.op != "block":
            continue
        for value in values:
            family = (value, *family_of.get(value, ()))
            readers = [graph.numbered()[reader] for other in family for reader in graph.readers[other]]
            generated = all(reader.op == "block" or (reader.op in VIEWS and results[0] in views) for reader, results in readers)
            if readers and generated and declared.keys().isdisjoint(family):
                free.append(value)
    return free


def candidate_layouts(graph: Graph, value: int) -> list[tuple[tuple[int, ...], Shape]]:
    """Orders of the dims with their strides, row-major first; with each of them all views of the value remain views."""
    shape = graph.types[value].shape
    long = [dim for dim, extent in enumerate(shape) if extent > 1]
    unit = [dim for dim, extent in enumerate(shape) if extent == 1]
    if len(long) <= OPTIMIZER.layout_dims:
        orders = [(*unit, *order) for order in permutations(long)]
    else:
        orders = [(*unit, *(other for other in long if other != dim), dim) for dim in reversed(long)]
    dims = tuple(range(len(shape)))
    candidates = [(dims, row_major(shape))]
    for order in orders:
        dense = row_major(tuple(shape[dim] for dim in order))
        strides = tuple(dense[order.index(dim)] for dim in dims)
        plain = row_major(shape)
        same = all(strides[dim] == plain[dim] for dim in long)
        if not same and _family(graph, value, strides) is not None:
            candidates.append((order, strides))
    return candidates


def _family(graph: Graph, value: int, strides: Shape) -> Mapping[int, Shape] | None:
    """The strides of the value and of all its views; None if a view would need a copy."""
    family = {value: strides}
    frontier = [value]
    for shown in frontier:
        for item, values in map(graph.numbered().__getitem__, graph.readers[shown]):
            if item.op in VIEWS:
                view = shown_at(item, graph.types[shown].shape, family[shown])
                if view is None:
                    return None
                family[values[0]] = view[0]
                frontier.append(values[0])
    return family


@dataclass(frozen=True, slots=True)
class Access:
    """An access of one kernel to a value: the tile, the shape and strides of the value or its view, and the number of tiles."""

    kernel: int  # position in the graph
    tile: Shape
    shape: Shape
    strides: Shape
    itemsize: int
    tiles: int


def accesses(graph: Graph, value: int, strides: Shape) -> Iterator[Access]:
    """All accesses of generated kernels to a value with these strides, directly and through views."""
    family = _family(graph, value, strides)
    assert family is not None
    for position in sorted({graph.makers[value], *(reader for other in family for reader in graph.readers[other])}):
        item, results = graph.numbered()[position]
        if item.op != "block":
            continue
        block: Graph = item["graph"]
        if value in results:
            output = block.outputs[results.index(value)]
            lead = sum(target == NEW_DIM for target in output["omap"])
            tile = (1,) * lead + block.types[output.operands[0]].shape
            kind = graph.types[value]
            yield Access(position, tile, kind.shape, strides, kind.dtype.itemsize, prod(block.grid))
        for operand, load in zip(item.operands, block.input_values, strict=True):
            if operand in family:
                kind = graph.types[operand]
                tiles = prod(block.grid) * (block.loop if block.phases[load] is Phase.LOOP else 1)
                tile = block.types[load].shape
                yield Access(position, tile, kind.shape, family[operand], kind.dtype.itemsize, tiles)


def _accesses(graph: Graph, value: int, strides: Shape, kernels: Sequence[int], device: Device) -> tuple[int, ...]:
    """Picoseconds of the accesses of each kernel to a value with these strides."""
    moved = dict.fromkeys(kernels, 0.0)
    for access in accesses(graph, value, strides):
        moved[access.kernel] += access.tiles * _moved(access)
    return tuple(round(1e12 * moved[position] / device.cache_bandwidth) for position in kernels)


def _moved(access: Access) -> float:
    """Bytes moved for one tile: its contiguous runs, in whole sectors."""
    run, size = run_length(access.tile, access.shape, access.strides), access.itemsize
    return prod(access.tile) / run * max(run * size, min(SECTOR, prod(access.shape) * size))


def run_length(tile: Shape, shape: Shape, strides: Shape) -> int:
    """Consecutive elements of a tile."""
    run = 1
    dims = sorted(
        (stride, extent, whole) for stride, extent, whole in zip(strides, tile, shape, strict=True) if whole > 1 and stride > 0
    )
    for stride, extent, whole in dims:
        if stride != run:
            break
        run *= extent
        if extent < whole:
            break
    return run


def with_strides(graph: Graph, strides: Mapping[int, Shape | None]) -> Graph:
    """The kernel graph with these strides for these outputs of block graphs."""
    nodes: list[Node] = []
    for item, values in graph.numbered():
        if item.op == "block" and not strides.keys().isdisjoint(values):
            block = with_attributes(item["graph"], outputs=[{"strides": strides.get(value)} for value in values])
            item = node(item.op, *item.operands, **(item.mapping | {"graph": block}))
        nodes.append(item)
    return replace(graph, nodes=tuple(nodes))
