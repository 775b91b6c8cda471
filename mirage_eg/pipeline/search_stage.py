"""The stage that searches the whole program as one segment, where one kernel may hold all its ops.

The splits are work items, then the structures; each structure keeps its cheapest µGraphs. All other segments are left to
`partition_stage`, with the same task under tighter limits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from time import perf_counter

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.launches.launch_graph import generates_kernels
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.egraph.oracle import Limits
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.renamed_views import Renamed, as_given, rename_views
from mirage_eg.pipeline.found import Found
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.kernel_plan import compose
from mirage_eg.search.partition.plan_records import KernelPlan, PlanPart, Segment, SegmentLimits
from mirage_eg.search.partition.segment_search import (
    Instantiated,
    Task,
    TracedSearch,
    instantiate_each,
    longest_held,
    search_splits,
)
from mirage_eg.search.partition.segments import Segmenter, counts, op_count, segment_program
from mirage_eg.search.structure import AnyStructure
from mirage_eg.search.structure_search import NOT_BEGUN, SearchLimits, SearchResult, SplitRecord, merged, split_choices
from mirage_eg.search.trace import MOST
from mirage_eg.transforms.ordered_images import ordered_images

NO_SEARCH = SearchResult((), (), (), 0.0)


@dataclass(frozen=True, slots=True)
class OneKernelSearch:
    """The search of a program as one kernel: the segment of all ops, its structures, and their µGraphs."""

    segment: Segment
    program: Graph  # the segment's under axis names; the given one where it was not searched
    axes: Axes | str  # or why it was not searched
    search: SearchResult = NO_SEARCH
    structures: tuple[Instantiated, ...] = ()
    candidates: tuple[tuple[Found, ...], ...] = ()  # of each structure
    notes: tuple[str, ...] = ()  # for the report
    cut: bool = False  # by the budget
    named: Renamed | None = None  # where it was searched

    def ended(self, stage: str) -> int:
        """Structures that end at a check of their small instance."""
        return sum(entry.ended == stage for entry in self.structures)


def segment_task(run: Run) -> Task:
    """The search of a segment under the options of a run, without limits of time and states."""
    options = run.options
    limits = SearchLimits(options.max_block_ops, max_kernels=options.kernels_of_search, max_outputs=options.max_outputs)
    filters, trials = filters_of(options), options.trials
    return Task(run.rulebook, run.device, limits, filters, options.seed, trials)


def filters_of(options: Options) -> Filters:
    return Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)


def mugraph_of(options: Options, device: Device, primitive: Graph, plan: KernelPlan) -> Found:
    graph, warps = compose(primitive, plan.parts), options.warps_untuned
    proved = all(part.kernels.proved for part in plan.parts)
    graph = graph if warps is None else with_warps(graph, warps)
    return Found(graph, predict_us(graph, device), is_fused(primitive, plan) or generates_kernels(graph), proved, plan)


def is_fused(primitive: Graph, plan: KernelPlan) -> bool:
    """Whether a kernel of a plan computes several ops, or the whole program."""
    return any(
        part.kernels.fused and (len(plan.parts) == 1 or sum(counts(primitive.nodes[i]) for i in part.segment.nodes) > 1)
        for part in plan.parts
    )


def search_one_kernel(run: Run, primitive: Graph) -> OneKernelSearch:
    """The structures of the whole program, each with as many µGraphs as are verified or, on a GPU, sampled."""
    options = run.options
    segment = Segmenter(primitive, SegmentLimits(max_ops=options.max_block_ops)).whole()
    with run.watch.stage("search"):
        try:
            named, axes = _named(primitive, segment, options)
        except UnsupportedError as error:
            return OneKernelSearch(segment, primitive, str(error), notes=(f"not searched as one kernel: {error}",))
        task = replace(segment_task(run), split_reductions=HEURISTICS.split_reductions, trace=MOST if run.tracer else 0)
        until = run.until.part(HEURISTICS.until_structures)
        search = _structures(run, replace(task, until=until), named.program, axes)
        cut = until.passed()
    with run.watch.stage("instantiate"):
        until = run.until.part(HEURISTICS.until_tiles)
        task = replace(task, until=until)
        if run.on_gpu:
            structures = instantiate(run, replace(task, each=HEURISTICS.sampled_graphs), named, axes, search.all)
        else:
            structures = _top_of_each(run, task, named, axes, search.all)
        candidates = tuple(
            tuple(
                mugraph_of(options, run.device, primitive, KernelPlan((PlanPart(segment, segment.inputs, it),)))
                for it in entry.kernels
            )
            for entry in structures
            if entry.kernels
        )
    notes = (*_notes_on(search.records), *notes_on_cut(structures))
    cut |= any(entry.cut for entry in structures)
    return OneKernelSearch(segment, named.program, axes, search, structures, candidates, notes, cut, named)


def _named(primitive: Graph, segment: Segment, options: Options) -> tuple[Renamed, Axes]:
    """The whole program under axis names.

    Raises UnsupportedError: no block graph within the limits of `options` may hold it.
    """
    if not segment.nodes:
        raise UnsupportedError("its outputs are its inputs")
    if len(segment.outputs) > options.max_outputs:
        raise UnsupportedError(f"{len(segment.outputs)} outputs are more than the {options.max_outputs} of a block graph")
    program = segment_program(primitive, segment)
    if ordered_images(program) is not None:
        raise UnsupportedError("its images are tiled in the order of memory, as a part of a plan")
    is_short = op_count(program) - uncounted_ops(program) <= options.max_block_ops
    named = rename_views(program) if is_short else as_given(program)
    limits = SegmentLimits(max_ops=options.max_block_ops, longest_held=longest_held(options.device_record))
    if (reason := Segmenter(named.program, limits).why_not_one()) is not None:
        raise UnsupportedError(reason)
    return named, infer_axes(named.program)


def _structures(run: Run, task: Task, program: Graph, axes: Axes) -> SearchResult:
    """The structures of a program, one work item a split."""
    begin = perf_counter()
    choices = split_choices(axes, task.limits)
    limits = replace(
        task.limits,
        max_states=max(HEURISTICS.fewest_states, HEURISTICS.states // len(choices)),
        max_alike=HEURISTICS.alike,
        saturation=saturation_limits(run.options, _saturation(run.rulebook, len(choices))),
    )
    states = structures = 0

    def progress(done: int, searched: TracedSearch) -> None:
        nonlocal states, structures
        states += searched[0].visited
        structures += searched[0].count
        run.watch.observer("search", done, len(choices), f"{counted(states, 'state')}, {counted(structures, 'structure')}")

    def is_final(searched: TracedSearch) -> bool:
        return not task.until.passed() or searched[0].complete

    stage = "search" if run.tracer is None else "traced search"
    common = (replace(task, limits=limits), program, axes)
    searched: list[TracedSearch] = run.work.run(stage, search_splits, common, choices, progress, is_final)
    if run.tracer is not None:
        run.tracer.extend(entry for _, traced in searched for entry in traced)
    return replace(merged([found for found, _ in searched]), seconds=perf_counter() - begin)


def saturation_limits(options: Options, default: Limits) -> Limits:
    """The limits of saturation of a run: those of its options, the others of `default`."""
    return Limits(
        options.egraph_iterations or default.iterations,
        options.egraph_nodes or default.nodes,
        options.egraph_seconds or default.seconds,
        options.egraph_backoff,
        options.allow_cut,
    )


def _saturation(rulebook: Rulebook, splits: int) -> Limits:
    """Limits of one split's e-graph; further with laws of a user's, where reaching them is an error."""
    most = HEURISTICS.nodes if rulebook.domain == "indexed" else HEURISTICS.abstract_nodes
    nodes = min(most, max(HEURISTICS.fewest_nodes, 20 * most // splits))
    return replace(Limits(), nodes=nodes) if rulebook.packaged else Limits()


def _notes_on(records: Sequence[SplitRecord]) -> Iterator[str]:
    """The splits whose search was not complete, and why."""
    begun = [record for record in records if record.saturation != NOT_BEGUN]
    if left_out := len(records) - len(begun):
        yield f"{left_out} of {len(records)} splits were not searched: the budget was spent"
    if stopped := [record for record in begun if not record.complete]:
        visited = sum(record.visited for record in stopped)
        yield f"{_listed(stopped)}: the search stopped after {visited:,} states, before its end"
    for limit, cut in groupby(sorted(begun, key=_limit), key=_limit):
        if limit:
            yield f"{_listed([*cut])}: saturation {limit}; the e-graph may prune too much"


def _limit(record: SplitRecord) -> str:
    return record.saturation.stopped or ""


def _listed(records: Sequence[SplitRecord]) -> str:
    first = "; ".join(record.split for record in records[:2])
    return first if len(records) <= 2 else f"{first}; {counted(len(records) - 2, 'more split')}"


def instantiate(
    run: Run, task: Task, named: Renamed, axes: Axes, structures: Sequence[AnyStructure], stage: str = "instantiate"
) -> tuple[Instantiated, ...]:
    """The structures with their µGraphs, one work item each."""
    count, best = 0, inf

    def progress(done: int, entry: Instantiated) -> None:
        nonlocal count, best
        count += entry.built
        best = min([best, *(kernels.us for kernels in entry.kernels[:1])])
        text = f"{counted(count, 'µGraph')}" + (f", best {best:.1f} µs" if count else "")
        run.watch.observer("instantiate", done, len(structures), text)

    def is_final(entry: Instantiated) -> bool:
        return not run.on_gpu and not entry.cut

    entries: list[Instantiated] = run.work.run(stage, instantiate_each, (task, named, axes), structures, progress, is_final)
    return tuple(entries)


def _top_of_each(
    run: Run, task: Task, named: Renamed, axes: Axes, structures: Sequence[AnyStructure]
) -> tuple[Instantiated, ...]:
    """The structures with as many µGraphs of each as `diverse` takes; how many that is depends on how many structures fit."""
    each = _rounds(run, len(structures))
    found = instantiate(run, replace(task, each=each), named, axes, structures)
    fitting = [entry.structure for entry in found if entry.kernels]
    if (more := _rounds(run, len(fitting))) == each or not fitting:
        return found
    again = iter(instantiate(run, replace(task, each=more), named, axes, fitting, "instantiate further"))
    return tuple(_with_more(entry, next(again)) if entry.kernels else entry for entry in found)


def _with_more(entry: Instantiated, again: Instantiated) -> Instantiated:
    """A structure with more µGraphs, unless the budget ended before it had them."""
    return again if len(again.kernels) >= len(entry.kernels) else replace(entry, cut=True)


def _rounds(run: Run, structures: int) -> int:
    """How many µGraphs of each structure are among the first."""
    return -(-run.options.top // max(1, structures))


def notes_on_cut(structures: Sequence[Instantiated]) -> Iterator[str]:
    if unfinished := sum(entry.cut for entry in structures):
        yield f"{unfinished} of {len(structures)} structures were not given all tilings: the budget was spent"
