"""Instantiation of a structure: the grid, the loop count and so all tiles (docs/explanation/search.md).

`tilings` enumerates, `limits` filters, the cost model ranks.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import cycle, islice
from math import inf, prod
from operator import le
from typing import NamedTuple

from mirage_eg.backends.cost.block_cost import Orders, work_of_tiles
from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.live_iterations import skipping_masks
from mirage_eg.backends.cost.liveness import LiveTiles, live_tiles, multiplies_tiles
from mirage_eg.backends.cost.registers import MOST_THREADS
from mirage_eg.backends.cost.roofline_model import orders_of, predict_us
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.tiles import expanded
from mirage_eg.egraph.expression import primes
from mirage_eg.ir.axes import Axes, resize
from mirage_eg.ir.checker import MAX_GRID_DIMS
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import ElementTypeError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.whole_inputs import causal_inputs
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.instantiate.cost_bound import CostBound, LoadSource
from mirage_eg.search.instantiate.limits import Filters, TileLimits, fits, has_unfit_shape, holds
from mirage_eg.search.instantiate.lower_structure import Outline, lower_structure, lower_with_outlines, threads_of_rows
from mirage_eg.search.instantiate.tiling import Tiling
from mirage_eg.search.instantiate.tiling_space import kernels_of, tilings_of
from mirage_eg.search.structure import SplitReduction, Structure


def small_instance(plan: Structure | SplitReduction, program: Graph, axes: Axes) -> tuple[Graph, Graph]:
    """The program and the plan's µGraph at small sizes.

    No two sizes agree, so that nothing fits by accident; only in programs of so many axes that arrays would be large, sizes
    repeat. Axes of inputs that no op reads have size 1.
    """
    kernels = kernels_of(plan, program, axes)
    gridded = [kernel.parallel[: MAX_GRID_DIMS - (kernel.split_axis is not None)] for kernel in kernels]
    cut = {plan.split.grid_axis, *(axis for chosen in gridded for group in chosen for axis in group)}
    read = [frozenset[int]().union(*map(axes.of, item.operands)) for item in program.nodes]
    used = sorted(frozenset[int]().union(*read))
    sizes = [1] * len(axes.sizes)
    for different in range(len(used), 0, -1):
        for axis, tile in zip(used, cycle(islice(primes(), different)), strict=False):
            sizes[axis] = (2 if axis in cut else 1) * (3 if axis == plan.split.looped else 1) * tile
        if all(prod(sizes[axis] for axis in together) <= SEARCH.small_instance for together in read):
            break
    small = resize(program, axes, sizes)
    tilings = [
        kernel.tiling((*sizes, 2), {group[0]: sizes[group[0]] // 2 for group in chosen}, 3, 2)
        for kernel, chosen in zip(kernels, gridded, strict=True)
    ]
    return small, lower_structure(plan, small, axes, *tilings)


def has_element_types(plan: Structure | SplitReduction, program: Graph, axes: Axes) -> bool:
    """Whether every op of a structure has a result for the element types of its operands.

    The search knows none: with indicators or integers among the inputs it also divides them.
    """
    if all(kind.dtype is not DType.bool and not kind.dtype.is_integer for kind in program.types):
        return True
    try:
        small_instance(plan, program, axes)
    except ElementTypeError:
        return False
    return True


def instances(
    plan: Structure | SplitReduction,
    program: Graph,
    axes: Axes,
    limits: TileLimits | None = None,
    filters: Filters | None = None,
) -> Iterator[Graph]:
    """The µGraphs of a plan at the program's sizes, under the limits and filters (of the first kernel)."""
    instantiation = Instantiation(plan, program, axes, limits, filters)
    for tilings in instantiation.tilings():
        graph = instantiation.build(tilings)
        if instantiation.is_admitted(graph) and instantiation.fits(graph):
            yield graph


@dataclass(frozen=True, slots=True)
class Choice:
    """The tilings of the kernels, and a lower bound of their cost on a device, in microseconds."""

    us: float
    tilings: tuple[Tiling, ...]


def best_first(
    instantiations: Sequence["Instantiation"], device: Device, until: Deadline = NEVER, closed: Collection[int] = ()
) -> Iterator[tuple[int, Graph, float]]:
    """The µGraphs of several structures that fit, cheapest first: position of the instantiation, µGraph, microseconds.

    Branch and bound: choices are built in the order of their lower bounds, and a µGraph is given once no lower bound that is
    left is below its time. A lower bound is replaced by the cost of the tiles once a block graph of the same form is known.
    From `until` on no more are built. The caller may extend `closed` meanwhile: no more µGraphs of these positions are wanted.
    """
    built: list[tuple[float, int, int, int, Graph]] = []

    def ready(least: float) -> Iterator[tuple[int, Graph, float]]:
        while built and built[0][0] <= least:
            us, _, _, position, graph = heappop(built)
            if position not in closed:
                yield position, graph, us

    choices = [
        (choice.us, position, number, False, choice)
        for position, instantiation in enumerate(instantiations)
        if not until.passed()
        for number, choice in enumerate(instantiation.choices(device))
    ]
    heapify(choices)
    count = 0
    while choices and not until.passed():
        least, position, number, is_exact, choice = choices[0]
        yield from ready(least)
        if position in closed:
            heappop(choices)
        elif not is_exact and (us := instantiations[position].us_of_tiles(choice)) is not None and us > least:
            heapreplace(choices, (us, position, number, True, choice))
        else:
            heappop(choices)
            if (graph := instantiations[position].take(choice)) is not None:
                heappush(built, (predict_us(graph, device), len(launches_of(graph).kernels), count, position, graph))
                count += 1
    yield from ready(inf)


class _KnownKernel(NamedTuple):
    """A kernel of a form that was built; masks may skip its iterations, its ops may all be primitive, and `orders` are those of
    its tensors."""

    outline: Outline
    live: LiveTiles
    is_masked: bool
    is_primitive: bool
    orders: Orders

    def threads(self, shapes: Sequence[Shape]) -> int:
        """The threads of a block with tiles of these shapes; the most where it has a tl.dot."""
        block = self.outline.block
        return MOST_THREADS if multiplies_tiles(block) else threads_of_rows(block, self.live.nbytes(shapes), shapes)


class Instantiation:
    """The tilings of one structure at the sizes of a program, each lowered on demand."""

    def __init__(
        self,
        plan: Structure | SplitReduction,
        program: Graph,
        axes: Axes,
        limits: TileLimits | None = None,
        filters: Filters | None = None,
        avoided: frozenset[Graph] = frozenset(),
    ) -> None:
        """`avoided`: block graphs of no µGraph that is taken."""
        self.plan, self.program, self.axes, self.avoided = plan, program, axes, avoided
        self.limits, self.filters = limits or TileLimits(), filters or Filters()
        self._kernels = kernels_of(plan, program, axes)
        self._masks = frozenset(causal_inputs(program))
        self.built = 0  # µGraphs that fit
        self.waiting = 0  # choices that were not taken
        self._refused: list[tuple[int, ...]] = []  # counts of the smallest choices
        self._groups: list[dict[tuple[int, ...], None]] = []  # the axes that the grids cut, of each kernel
        self._bounds: list[CostBound] = []  # of the kernels
        self._outlines: dict[tuple[object, ...], tuple[_KnownKernel, ...]] = {}  # of each form built: its kernels
        self._us: dict[tuple[int, int], float] = {}  # by the identities of such a kernel and a tiling

    def tilings(self) -> list[tuple[Tiling, ...]]:
        """All choices that pass the bounds."""
        return tilings_of(self._kernels, self.axes, self.limits, self.filters)

    def build(self, tilings: Sequence[Tiling]) -> Graph:
        return lower_structure(self.plan, self.program, self.axes, *tilings)

    def is_admitted(self, graph: Graph) -> bool:
        return self.filters.admit(graph.blocks[0])

    def fits(self, graph: Graph) -> bool:
        return all(fits(block, self.limits) for block in graph.blocks)

    def choices(self, device: Device) -> list[Choice]:
        """All choices that pass the bounds, the most promising first."""
        given = zip(self.program.input_types, self.program.input_values, self.program.inputs, strict=True)
        inputs = [LoadSource(kind.dtype, self.axes.dims[value], item.get("strides")) for kind, value, item in given]
        outputs = [kind.dtype for kind in self.program.output_types]
        partials = [DType.float32 for _ in self._kernels[0].structure.outputs]
        chained = len(self._kernels) > 1
        read = [*inputs, *map(LoadSource, partials)]
        types = [(inputs, partials), (read, outputs)] if chained else [(inputs, outputs)]
        chosen = self.tilings()
        self._groups = [
            dict.fromkeys(group for each in {id(it): it for it in own}.values() for group, _ in each.grid)
            for own in zip(*chosen, strict=True)
        ]
        self._bounds = [
            CostBound(kernel.structure, kernel.shapes, *dtypes, device, kernel.split_axis, self._masks)
            for kernel, dtypes in zip(self._kernels, types, strict=True)
        ]
        self.waiting = len(chosen)
        least: list[dict[int, float]] = [{} for _ in self._bounds]  # by the identity of a tiling
        costed = []
        for together in chosen:
            us = 0.0
            for bound, known, tiling in zip(self._bounds, least, together, strict=True):
                if id(tiling) not in known:
                    known[id(tiling)] = bound.us(tiling)
                us += known[id(tiling)]
            costed.append(Choice(us, together))
        return sorted(costed, key=lambda choice: choice.us)

    def us_of_tiles(self, choice: Choice) -> float | None:
        """The predicted microseconds of a choice by the shapes of its tiles; None before a µGraph of its form was built, and
        where blocks may be clusters."""
        known = self._outlines.get(self._form(choice))
        if known is None or not all(kernel.is_primitive for kernel in known):
            return None
        if any(
            it.live.rows and it.live.nbytes(it.outline.shapes(tiling)) > self.limits.capacity(rows=True)
            for it, tiling in zip(known, choice.tilings, strict=True)
        ):
            return None
        us = 0.0
        for it, tiling, bound in zip(known, choice.tilings, self._bounds, strict=True):
            if (key := (id(it), id(tiling))) not in self._us:  # many pairs have the same first or last tiling
                live = bound.live(tiling) if it.is_masked else 1.0
                shapes = it.outline.shapes(tiling)
                work = work_of_tiles(it.outline.block, shapes, tiling.loop, live, it.threads(shapes), it.orders)
                self._us[key] = bound.us_of(work, tiling)
            us += self._us[key]
        return us

    def _form(self, choice: Choice) -> tuple[object, ...]:
        return tuple(tiling.form for tiling in choice.tilings)

    def take(self, choice: Choice) -> Graph | None:
        """The µGraph of a choice, if it fits and is asked for; not built where a smaller one has not fitted."""
        self.waiting -= 1
        if self._holds_a_refused_one(choice):
            return None
        graph = None
        if not self._has_too_large_tiles(choice):
            graph, outlines = lower_with_outlines(self.plan, self.program, self.axes, *choice.tilings)
            if (form := self._form(choice)) not in self._outlines:
                blocks = [(item, orders_of(graph, item, values)) for item, values in graph.numbered() if item.op == "block"]
                self._outlines[form] = tuple(
                    _KnownKernel(
                        outline,
                        live_tiles(outline.block),
                        bool(skipping_masks(graph, item)),
                        expanded(outline.block) is outline.block,
                        orders,
                    )
                    for outline, (item, orders) in zip(outlines, blocks, strict=True)
                )
        if graph is None or not self.fits(graph):
            if graph is None or not any(has_unfit_shape(block, self.limits) for block in graph.blocks):
                self.refuse(choice)
            return None
        if not self.is_admitted(graph):
            return None
        if not self.avoided.isdisjoint(graph.blocks):
            if len(graph.blocks) == 1:
                self.refuse(choice)
            return None
        self.built += 1
        return graph

    def refuse(self, choice: Choice) -> None:
        """Take no choice any more whose tiles are at least as large."""
        if not self._holds_a_refused_one(choice):
            own = self._counts(choice)
            self._refused = [own, *(other for other in self._refused if not all(map(le, other, own)))]

    def _holds_a_refused_one(self, choice: Choice) -> bool:
        """Whether no tile is smaller than that of a choice that does not fit: then this one does not either."""
        if not self._refused:
            return False
        own = self._counts(choice)
        return any(all(map(le, own, other)) for other in self._refused)

    def _counts(self, choice: Choice) -> tuple[int, ...]:
        """The iterations and blocks of each kernel: fewer of them have larger tiles."""
        counts = list[int]()
        for tiling, groups in zip(choice.tilings, self._groups, strict=True):
            blocks = dict(tiling.grid)
            counts += (tiling.loop, *(blocks.get(group, 1) for group in groups))
        return tuple(counts)

    def _has_too_large_tiles(self, choice: Choice) -> bool:
        """Whether registers cannot hold the tiles, by a bound that builds no tile."""
        return any(
            not holds(it.live, it.outline.shapes(tiling), self.limits)
            for it, tiling in zip(self._outlines.get(self._form(choice), ()), choice.tilings, strict=False)
        )
