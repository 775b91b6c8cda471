"""The stage that partitions a program into kernels: it searches segments, and keeps the cheapest plan of each kernel count."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf
from types import MappingProxyType

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.egraph.oracle import Limits
from mirage_eg.ir.deadline import NEVER
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.choose_candidates import within_budget
from mirage_eg.pipeline.compile_stage import Compiler
from mirage_eg.pipeline.found import Found, Lowered, lower
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import CompileRecord
from mirage_eg.pipeline.search_stage import OneKernelSearch, mugraph_of, saturation_limits, segment_task
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.kernel_finder import KernelFinder
from mirage_eg.search.partition.known_segments import bound_of_known, find_known
from mirage_eg.search.partition.plan_graph import PlanStep
from mirage_eg.search.partition.plan_records import KernelPlan, KnownSegment, PlanPart, Segment, SegmentLimits
from mirage_eg.search.partition.segment_search import (
    FieldCheck,
    SegmentSearch,
    Task,
    as_searched,
    best_kernels,
    find_kernels,
    for_other_sizes,
    longest_held,
)
from mirage_eg.search.partition.segments import counts, segment_program
from mirage_eg.search.partition.shortest_path import Partition, few_kernels, partition, plan_of_library
from mirage_eg.search.trace import MOST_OF_SEGMENT, Traced
from mirage_eg.transforms.split_statistics import with_split_statistics
from mirage_eg.verify.subgraph_check import Subgraph


@dataclass(frozen=True, slots=True)
class PlanChoices:
    """What was found for each part of a plan, its own kernels first, and how a plan of some of them becomes a µGraph."""

    parts: tuple[tuple[PlanPart, ...], ...]
    compose: Callable[[KernelPlan], Found]


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """The µGraphs of the plans kept, and the figures of the search.

    Where a GPU will time them, `choices` has other kernels for the parts of a plan, by its µGraph.
    """

    candidates: tuple[tuple[Found, ...], ...]
    partition: Partition
    visited: int
    structures: int
    pruned: dict[str, int]
    traced: tuple[Traced, ...] = ()
    known: tuple[KnownSegment, ...] = ()
    choices: Mapping[Graph, PlanChoices] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cut: bool = False  # by the budget


NOTHING: Mapping[Graph, SegmentSearch] = MappingProxyType({})


def task_of_parts(run: Run) -> Task:
    """The search of a segment of a plan, under tighter limits than that of the whole program, until plans are searched no
    more."""
    task = segment_task(run)
    saturation = saturation_limits(run.options, Limits(nodes=HEURISTICS.segment_nodes))
    limits = replace(task.limits, max_alike=HEURISTICS.segment_alike, saturation=saturation)
    until = run.until.part(HEURISTICS.until_plans)
    trace = MOST_OF_SEGMENT if run.tracer else 0
    return replace(task, limits=limits, segment_states=HEURISTICS.segment_states, until=until, trace=trace)


class Partitioner:
    """Partitions one program into kernels; segments are work items.

    Where a GPU will time the plans, more of them are kept than the cost model prefers. `found`: segments that were searched.
    With segments `known` from a search at other sizes nothing is searched.
    """

    def __init__(
        self,
        run: Run,
        primitive: Graph,
        found: Mapping[Graph, SegmentSearch] = NOTHING,
        known: Sequence[KnownSegment] = (),
        most_us: float = inf,
    ) -> None:
        self._run, self._primitive, options = run, primitive, run.options
        self._task = task_of_parts(run)
        held = longest_held(run.device)
        segments = SegmentLimits(max_ops=options.max_block_ops, max_outputs=options.max_outputs, longest_held=held)
        most = options.max_kernels and options.max_kernels + shared_launches(primitive)
        if with_split_statistics(primitive, HEURISTICS.search.longest_row) is not None:
            self._task = replace(self._task, until=run.until.part(HEURISTICS.until_split))
        self._bounds = replace(
            HEURISTICS.partition,
            segments=segments,
            max_kernels=most,
            most_us=most_us,
            fewer=run.on_gpu or run.wanted.others,
            until=self._task.until,
        )
        if run.on_gpu:
            self._task = replace(self._task, each=HEURISTICS.measured_each, keep=HEURISTICS.measured_kernels)
            explore, until = HEURISTICS.explored, run.until.part(HEURISTICS.until_explored)
            self._bounds = replace(self._bounds, max_plans=HEURISTICS.measured_plans, explore=explore, explore_until=until)
        self._rounds = count()
        self._finder = KernelFinder(primitive, run.device, self._search, dict(found))
        self._structures = {segment_program(primitive, each.segment): each.structures for each in known}
        self._lower_bound = bound_of_known(self._finder, known) if known else self._finder.lower_bound
        self._first: Sequence[PlanStep] | None = None

    def find_first(self) -> None:
        """Find the segments of the first plan."""
        with self._run.watch.stage("kernels"):
            finder = self._finder
            self._first = plan_of_library(self._primitive, finder.find, self._lower_bound, finder.library, self._bounds)

    def add(self, one_kernel: OneKernelSearch) -> None:
        """The whole program's kernels are those of its search as one kernel, and of an earlier one as a segment."""
        if isinstance(one_kernel.axes, str):
            return
        program, task = segment_program(self._primitive, one_kernel.segment), self._task
        if as_searched(program) is not None:  # it is searched again, so
            return
        earlier = self._finder.found.get(program, SegmentSearch(()))
        kernels = best_kernels(task, program, one_kernel.structures, earlier.kernels)
        check = FieldCheck(one_kernel.program, one_kernel.axes, task)
        tried = (*for_other_sizes(one_kernel.structures, check), *earlier.tried)
        self._finder.found[program] = SegmentSearch(kernels, tried=(*dict.fromkeys(tried),))

    @property
    def found(self) -> Mapping[Graph, SegmentSearch]:
        """What was found for the programs of segments."""
        return self._finder.found

    def find(self, program: Graph, segments: Sequence[Segment]) -> list[tuple[PlanPart, ...]]:
        """The kernels of segments of another program; a segment whose program was searched before is not searched again."""
        finder = KernelFinder(program, self._run.device, self._search, self._finder.found)
        return finder.find(segments)

    def _search(self, programs: Sequence[Graph], likely: Iterable[Graph]) -> list[SegmentSearch]:
        stage = f"{'traced ' if self._task.trace else ''}kernels {next(self._rounds)}"
        work = self._run.work
        if self._structures:
            items = [(program, self._structures.get(program, ())) for program in programs]
            return work.run(f"known {stage}", find_known, self._task, items) if items else []
        known = work.workers.memory(replace(self._task, until=NEVER))  # of other runs: layers differ at their ends only
        new = [program for program in programs if program not in known]
        if not new:
            return [known[program] for program in programs]
        others = (program for program in likely if program not in known)
        results = work.run(stage, find_kernels, self._task, new, keep=lambda found: not found.cut, likely=others)
        searched = dict(zip(new, results, strict=True))
        known.update((program, found) for program, found in searched.items() if not found.cut)
        return [searched.get(program) or known[program] for program in programs]

    def _progress(self, searched: int, best_us: float) -> bool:
        self._run.watch.observer("kernels", searched, None, f"segments searched, best {best_us:.1f} µs predicted")
        return not self._bounds.until.passed()

    def plans(self) -> PlanSearch:
        """The cheapest plans, without block graphs that are avoided."""
        with self._run.watch.stage("kernels"):
            finder = self._finder
            library, first = None if self._structures else finder.library, self._first
            self._first = None  # the next plans may have to avoid its kernels
            found = partition(self._primitive, finder.find, self._lower_bound, self._bounds, self._progress, library, first)
            searched = finder.found.values()
            unsaturated = sum(entry.unsaturated for entry in searched)
            cut = self._task.until.passed()
            self._task = replace(
                self._task, until=task_of_parts(self._run).until
            )  # prices of other programs are searched later
            text = f"{unsaturated} of {len(searched)} segments had an e-graph that reached a limit and may prune too much"
            candidates = tuple((candidate,) for candidate in self._candidates(found.plans))
            return PlanSearch(
                candidates,
                found,
                sum(entry.visited for entry in searched),
                sum(entry.structures for entry in searched),
                dict(sum((Counter(dict(entry.pruned)) for entry in searched), Counter[str]())),
                tuple(finder.traced()),
                tuple(self._known(found)),
                {entry.graph: self._choices(entry.plan) for (entry,) in candidates if self._run.on_gpu and entry.plan},
                (text,) if unsaturated and self._run.options.allow_cut else (),
                cut,
            )

    def _known(self, partition: Partition) -> Iterator[KnownSegment]:
        """The structures of the segments that were searched."""
        for segment, _ in partition.searched:
            found = self._finder.found.get(segment_program(self._primitive, segment))  # None: of the library alone
            if found is not None and found.tried:
                yield KnownSegment(segment, found.tried)

    def _candidates(self, plans: Sequence[KernelPlan]) -> Iterator[Found]:
        """Every plan, to be timed. Without a GPU: the plans worth verifying, optimized."""
        if self._run.on_gpu:
            yield from map(self._candidate, plans)
        else:
            for plan in worth_verifying(plans, self._bounds.max_kernels):
                found = self._candidate(plan)
                yield replace(found, optimized=optimize_mugraph(found.graph, self._run.device))

    def _candidate(self, plan: KernelPlan) -> Found:
        return mugraph_of(self._run.options, self._run.device, self._primitive, plan)

    def _choices(self, plan: KernelPlan) -> PlanChoices:
        composed = partial(mugraph_of, self._run.options, self._run.device, self._primitive)  # for other processes, too
        return PlanChoices(tuple((part, *self._finder.others(part)) for part in plan.parts), composed)

    def compiling(self, search: PlanSearch, compiler: Compiler, most_us: float, others: Collection[Graph] = ()) -> PlanSearch:
        """Plans of which those of at most `most_us` compile, but for the `others`, which are not the first even if they do:
        one gets the next best extents for a kernel that does not, or other segments.

        With a budget plans are compiled as long as it lasts; with a small `top` so many of them.
        """
        for attempt in count():
            firsts = [first for first, *_ in search.candidates[: self._run.options.top] if first.predicted_us <= most_us]
            best = [it for first in firsts if (it := lower(first, self._run.device)).graph not in others]
            batches = within_budget(self._run.until, best)
            compiled = [pair for batch in batches for pair in zip(batch, compiler.compile(batch), strict=True)]
            broken = frozenset(block for entry, made in compiled if not made.record.ok for block in _broken(entry, made.record))
            if not broken or self._run.until.passed():
                break
            self._task = replace(self._task, avoided=self._task.avoided | broken)
            self._finder.forget(broken, again=attempt < HEURISTICS.retries)
            search = self.plans()
        return search


def _broken(candidate: Lowered, record: CompileRecord) -> list[Graph]:
    """The block graphs of a plan, as they were found, that do not compile; all of them if the records do not say which."""
    assert candidate.found.plan is not None
    lowered, records = candidate.graph.blocks, record.kernels
    one_each = len(records) >= len(lowered)  # kernels of no block graph follow
    failed = {_outline(block) for block, kernel in zip(lowered, records, strict=False) if not kernel.ok}
    blocks = [block for part in candidate.found.plan.parts for block in part.kernels.graph.blocks]
    return [block for block in blocks if one_each and _outline(block) in failed] or blocks


def _outline(block: Graph) -> tuple[object, ...]:
    """The part of a block graph that the µGraph optimizer does not change: grid, loop and the ops that compute."""
    nodes = [inner for item in block.nodes for inner in (item["graph"].nodes if item.op == "thread" else [item])]
    return block.grid, block.loop, tuple(sorted(item.op for item in nodes if counts(item)))


def shared_launches(program: Graph) -> int:
    """The concatenations of a program that another one's launch computes, too; plans count each as a kernel."""
    return sum(len(launch.nodes) - 1 for launch in launches_of(program).of_kind(LaunchKind.CONCATENATION))


def worth_verifying(plans: Sequence[KernelPlan], max_kernels: int | None) -> list[KernelPlan]:
    """Of plans that no GPU will time: the cheapest, that of few kernels, that of the fewest; the cheapest first."""
    fewest = min((plan.kernels for plan in plans), default=0)
    few = [plan for plan in plans if plan.kernels <= few_kernels(fewest, max_kernels)]
    groups = (plans, few, [plan for plan in plans if plan.kernels == fewest])
    chosen = [min(group, key=lambda plan: plan.us) for group in groups if group]
    return sorted((plan for plan in plans if plan in chosen), key=lambda plan: plan.us)


def parts_to_check(candidates: Sequence[Lowered], device: Device) -> dict[PlanPart, Subgraph]:
    """The searched kernels of plans of several parts, as lowered, with the values of the program that they read and write."""
    plans = (entry.found.plan for entry in candidates)
    several = (plan for plan in plans if plan is not None and len(plan.parts) > 1)
    parts = dict.fromkeys(part for plan in several for part in plan.parts if part.kernels.fused)
    return {
        part: Subgraph(optimize_mugraph(part.kernels.graph, device).graph, part.inputs, part.segment.outputs) for part in parts
    }
