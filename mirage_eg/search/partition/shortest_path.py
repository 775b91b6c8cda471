"""The search for kernel boundaries: the cheapest plan through the segments of a program, each searched when it matters.

States are sets of values still needed, edges are segments (`segments`). An edge costs the predicted time of the best µGraph
that the structure search finds for its segment; before that search it costs a lower bound: the launch, and each input and
output moved once. The cheapest plan under these costs is found, its segments are searched, and so on until every segment on it
has been (Dellin and Srinivasa, 2016, LazySP). Then no other plan through these segments is cheaper under the cost model; where
patience ends first, the result has the gap to the last lower bound.

The first plan has products, convolutions and attention as kernels of the library, and all else between them in few kernels
(`plan_of_library`). Its graph of plans is small, and of its products only those are searched that may take much less time in a
kernel of their own: it takes seconds at most. Bounds of segments that reduce a product know none of its operations, so many of
them would come before a plan with such a kernel.

Two things are taken for granted, of a segment and a larger one that has the same ops and outputs and more, and reads as many
bytes at least: the larger one costs no less, and where the outputs are the same and no block graph holds the smaller one, none
holds the larger.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from mirage_eg.ir.deadline import after
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.plurals import counted
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.partition.plan_graph import Find, Library, LowerBound, PlanGraph, PlanStep
from mirage_eg.search.partition.plan_records import KernelPlan, PartitionLimits, PlanPart, Segment


@dataclass(frozen=True, slots=True)
class Partition:
    """The cheapest plans, cheapest first, and those that fewer kernels make dearer; none through these segments is below
    `bound_us`, none of at most `few` kernels, if such plans were searched, below `bound_of_few_us`."""

    plans: tuple[KernelPlan, ...]
    bound_us: float
    few: int
    bound_of_few_us: float
    states: int
    segments: int
    left_out: tuple[str, ...]  # since there would be too many plans
    complete: bool  # no plan through these segments is cheaper than the first
    searched: tuple[tuple[Segment, PlanPart | None], ...]  # segments, each with its best kernels

    @property
    def not_searched(self) -> tuple[str, ...]:
        """What was not searched, in words; empty if the search is complete."""
        if self.complete or self.left_out:
            return self.left_out
        if not self.plans:
            return (f"every plan: the search ended after {counted(len(self.searched), 'segment')}",)
        least = f"the segments of other plans, of which none is predicted below {self.bound_us:.1f} µs"
        return (f"{least} (the first: {self.plans[0].us:.1f} µs)",)


Progress = Callable[[int, float], bool]  # segments searched and microseconds of the best plan; whether to continue


def partition(
    program: Graph,
    find: Find,
    lower_bound: LowerBound,
    limits: PartitionLimits | None = None,
    on_progress: Progress | None = None,
    library: Library | None = None,
    given: Sequence[PlanStep] | None = None,
) -> Partition:
    """The cheapest plans to make kernels of `program`, which is in primitive ops.

    The `given` plan is the first, if it has steps; without one, and with a `library`, one of its kernels.
    """
    limits = limits or PartitionLimits()
    if given is None:
        given = () if library is None else plan_of_library(program, find, lower_bound, library, limits)
    graph = PlanGraph(program, lower_bound, limits, given=given)
    bound, complete = _search(graph, find, limits, on_progress, SEARCH.tie_penalty_us)  # first: seconds may be few
    few, bound_of_few = 0, 0.0
    if limits.fewer:
        if _is_worth_it(bound, limits):
            _search(graph, find, limits, on_progress, SEARCH.fewest_penalty_us)
        few = few_kernels(min((plan.kernels for plan in graph.front(None)), default=0), limits.max_kernels)
        bound_of_few, _ = _search(graph, find, limits, on_progress, SEARCH.tie_penalty_us, few)
    if len(graph.segments) <= limits.explore:
        _explore(graph, find, limits)
    front = graph.front(limits.max_kernels)
    least = [plan for place, plan in enumerate(front) if all(plan.us < other.us for other in front[:place])]
    various = graph.covering(limits.max_kernels)[: limits.max_plans // 2] if limits.explore else []
    more = front + graph.cheap(limits.max_kernels, limits.max_plans if limits.explore else 0)
    found = dict.fromkeys([*least, *various, *sorted(more, key=_order)][: max(len(least), limits.max_plans)])
    return Partition(
        tuple(sorted(found, key=_order)),
        bound - SEARCH.tie_penalty_us * len(program.nodes),
        few,
        bound_of_few - SEARCH.tie_penalty_us * few,
        len(graph.states),
        len(graph.segments),
        graph.left_out,
        complete and not graph.cut,
        tuple(
            (graph.segments[number], next(iter(parts), None))
            for number, parts in sorted(graph.searched.items())
            if number not in graph.of_library
        ),
    )


def plan_of_library(
    program: Graph, find: Find, lower_bound: LowerBound, library: Library, limits: PartitionLimits
) -> Sequence[PlanStep]:
    """The cheapest plan whose products are kernels of the library, with all else between them in few kernels.

    If no block graph holds the segments of any such plan, boundaries that are no better than others are tried, too, for half of
    the seconds that are left: there may be many. A search that is over has the plan, too, of the segments that it has found,
    among the states that half a second makes.
    """
    for every, part in ((False, 1.0), (True, 0.5)):
        until = after(max(SEARCH.boundaries_s, part * limits.until.left()))
        segments = replace(limits.segments, library_products=True, large_product=(0, 0), every_boundary=every)
        graph = PlanGraph(program, lower_bound, replace(limits, segments=segments, until=until), library)
        _search_faster_products(program, graph, find)
        bound, _ = _search(graph, find, limits, None, SEARCH.tie_penalty_us)
        if (steps := graph.steps(SEARCH.tie_penalty_us)) or not _is_worth_it(bound, limits):
            return steps
    return ()


def _search_faster_products(program: Graph, graph: PlanGraph, find: Find) -> None:
    """Search the library's products, without attentions, that kernels may compute in much less time, as those in float32."""
    us = {number: parts[0].kernels.us for number, parts in graph.searched.items()}
    slow = [number for number, own in us.items() if own - graph.lower_bounds[number] > SEARCH.faster_product_us]
    products = [number for number in slow if _is_one_product(program, graph.segments[number])]
    found = zip(products, find([graph.segments[number] for number in products], ()), strict=True)
    graph.searched |= {number: parts for number, parts in found if parts and parts[0].kernels.us < us[number]}


def _is_one_product(program: Graph, segment: Segment) -> bool:
    kinds = [program.nodes[position].kind for position in segment.nodes]
    return kinds.count(Kind.MATMUL) == 1 and {*kinds} <= {Kind.MATMUL, Kind.ELEMENTWISE, Kind.REARRANGEMENT}


def few_kernels(fewest: int, max_kernels: int | None = None) -> int:
    """How many kernels are few: as many as asked for, or one more than the fewest, or three."""
    return max_kernels or max(SEARCH.few_kernels, 1 + fewest)


def _search(
    graph: PlanGraph,
    find: Find,
    limits: PartitionLimits,
    on_progress: Progress | None,
    per_kernel: float,
    most: int | None = None,
) -> tuple[float, bool]:
    """Search segments until the cheapest plan of at most so many kernels is certain, if each kernel costs `per_kernel` more.

    A segment that may take nearly as long as one of its own is searched after that (`PlanGraph.core`), if it still matters.
    All segments of a plan are searched together, which completes the plan and gives several processes work; where `most` is
    given, one at a time, since each tightens the bounds of its neighbours, so that fewer are searched until the bound is met.
    Gives a lower bound, and whether no such plan is cheaper than the best.
    """
    (best, us), bound, waited = graph.best(per_kernel, most), 0.0, 0
    is_reached = False  # a plan besides the given one
    while waited < (limits.patience if most is None else limits.patience_of_few):
        path, least = graph.cheapest(per_kernel, most)
        bound = max(bound, least)
        if per_kernel == SEARCH.tie_penalty_us and not _is_worth_it(bound, limits):
            break
        waiting = [number for number in path if number not in graph.searched]
        if not waiting:
            return bound, True
        if best - bound <= (limits.close - 1) * us < inf:
            return bound, best <= bound
        cores = [*dict.fromkeys(map(graph.core, waiting))]
        asked = len(cores) if most is None else 1
        graph.evaluate(cores[:asked], find, graph.likely(cores, asked, per_kernel, most))
        before, (best, us) = best, graph.best(per_kernel, most)
        is_reached |= all(map(graph.searched.get, path))
        waited = 0 if best < before else waited + (is_reached and cores == waiting)
        if on_progress is not None and not on_progress(len(graph.searched), us):
            break
        if len(graph.searched) >= limits.max_searched:
            break
    return bound, False


def _explore(graph: PlanGraph, find: Find, limits: PartitionLimits) -> None:
    """Search the other segments, first that of which a plan may take least."""
    while not limits.explore_until.passed() and (waiting := graph.waiting()):
        graph.evaluate(waiting[:1], find, (graph.segments[number] for number in waiting[1:]))


def _is_worth_it(bound: float, limits: PartitionLimits) -> bool:
    """Whether a plan may take less than another program's."""
    return limits.most_us == inf or bound * limits.close < limits.most_us  # without any plan the bound is infinite


def _order(plan: KernelPlan) -> tuple[float, int]:
    return plan.us, plan.kernels
