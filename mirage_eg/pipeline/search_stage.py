"""The first stages of a run: the search for structures of the whole program, their field check, their instances.

Independent work items go through `run.work`: a function that gives a result for each item, in this process or another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from math import inf
from time import perf_counter, time

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.egraph.expression import Split
from mirage_eg.egraph.oracle import Limits, oracle_builder
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.records import Candidate
from mirage_eg.pipeline.stage_records import Instances, Run, Searched
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.segment_search import FieldCheck, tile_limits
from mirage_eg.search.partition.segments import Segmenter, SegmentLimits, counts
from mirage_eg.search.search import NOT_BEGUN, SearchLimits, SearchResult, SplitRecord, merged, split_choices
from mirage_eg.search.structure import AnyStructure
from mirage_eg.search.trace import Tracer, traced_search
from mirage_eg.transforms.renamed_views import Renamed, as_given, rename_views

SPLIT_REDUCTIONS_PER_SPLIT = 6
ALIKE = 8  # structures of each split that load alike, smallest first; others differ in where cheap ops stand
STATES, FEWEST_STATES = 100_000, 1_000  # of all splits together, in equal shares; of each at least
NODES, FEWEST_NODES = {"indexed": 10_000, "abstract": 50_000}, 2_000  # of the e-graph of one of up to 20 splits
SAMPLED = 256  # µGraphs of each structure, of which a tuner tries some


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """The search of the whole program as one segment: structures, those that pass the field check, and their µGraphs."""

    named: Renamed  # the program under axis names
    axes: Axes | str  # or why it was not searched
    search: SearchResult
    equal: tuple[AnyStructure, ...]
    rejected: int  # structures that fail the field check
    instances: tuple[Instances, ...]  # of each of the equal structures
    candidates: tuple[tuple[Candidate, ...], ...]  # of each structure that has any


def search_whole_program(run: Run, primitive: Graph) -> WholeProgram:
    """The candidates of structures of the whole program: as many of each as are verified or, on a GPU, tuned."""
    with run.watch.stage("search"):
        named = named_program(primitive, run.options)
        axes, search = search_structures(run, named.program)
    with run.watch.stage("structures"):
        equal, rejected = verify_structures(run, search.all, named.program, axes)
    with run.watch.stage("instantiate"):
        instances = instantiate(run, equal, named.program, axes, None if run.on_gpu else run.options.top)
        candidates = (_candidates(run, *pair, named) for pair in zip(equal, instances, strict=True))
        return WholeProgram(named, axes, search, tuple(equal), rejected, tuple(instances), tuple(filter(None, candidates)))


def filters_of(options: Options) -> Filters:
    """The restrictions on block graphs that the options state."""
    return Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)


def named_program(primitive: Graph, options: Options) -> Renamed:
    """The program under axis names; as it is where it has none, or no block graph holds it: the search then says why."""
    try:
        if sum(map(counts, primitive.nodes)) - uncounted_ops(primitive) > options.max_block_ops:
            return as_given(primitive)
        return rename_views(primitive)
    except UnsupportedError:
        return as_given(primitive)


def _candidates(run: Run, structure: AnyStructure, instances: Instances, named: Renamed) -> tuple[Candidate, ...]:
    """The µGraphs of a structure as µGraphs of the program."""
    graphs: Sequence[tuple[Graph, float]] = instances.graphs
    if named.is_renamed:
        joined = [named.joined(graph) for graph, _ in graphs]
        graphs = [(graph, predict_us(graph, run.device)) for graph in joined]
    return tuple(Candidate(graph, us, True, structure.proved, structure) for graph, us in graphs)


def search_structures(run: Run, primitive: Graph) -> tuple[Axes | str, SearchResult]:
    """The axes of the program, or the reason why it was not searched, and all structures found.

    One work item a split; of split reductions the smallest of each split.
    """
    options, watch = run.options, run.watch
    try:
        axes = _searchable_axes(primitive, options)
    except UnsupportedError as error:
        watch.notes.append(f"not searched as one kernel: {error}")
        return str(error), SearchResult((), (), (), 0.0)
    begin = perf_counter()
    until = options.until()
    limits = SearchLimits(
        options.max_block_ops + uncounted_ops(primitive),
        max_kernels=options.kernels_of_search,
        max_outputs=options.max_outputs,
        max_alike=ALIKE,
    )
    choices = split_choices(axes, limits)
    limits = replace(limits, max_states=max(FEWEST_STATES, STATES // len(choices)))
    states = structures = 0

    def progress(done: int, searched: Searched) -> None:
        nonlocal states, structures
        states += searched.found.visited
        structures += searched.found.count
        watch.observer("search", done, len(choices), f"{states:,} states, {structures} structures")

    def is_final(searched: Searched) -> bool:
        return time() < until or searched.found.complete

    common = (primitive, axes, run.rulebook, limits, len(choices), until, run.tracer is not None)
    stage = "search" if run.tracer is None else "traced search"
    searched: list[Searched] = run.work.run(stage, _search_splits, common, choices, progress, is_final)
    if run.tracer is not None:
        run.tracer.extend(traced for entry in searched for traced in entry.traced)
    found = replace(merged([entry.found for entry in searched]), seconds=perf_counter() - begin)
    watch.notes += _notes_on(found.records)
    return axes, found


def _searchable_axes(primitive: Graph, options: Options) -> Axes:
    """The axes of a program that one block graph may hold.

    Raises:
        UnsupportedError: no block graph within the limits of `options` holds it.
    """
    if len(primitive.outputs) > options.max_outputs:
        raise UnsupportedError(f"{len(primitive.outputs)} outputs are more than the {options.max_outputs} of a block graph")
    if (reason := Segmenter(primitive, SegmentLimits(max_ops=options.max_block_ops)).why_not_one()) is not None:
        raise UnsupportedError(reason)
    return infer_axes(primitive)


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
    return first if len(records) <= 2 else f"{first}; {len(records) - 2} more splits"


def _search_splits(
    common: tuple[Graph, Axes, Rulebook, SearchLimits, int, float, bool], choices: Sequence[Split]
) -> Iterator[Searched]:
    primitive, axes, rulebook, limits, splits, until, traced = common
    with oracle_builder(rulebook, _saturation(rulebook, splits)) as build:
        for split in choices:
            left = replace(limits, seconds=until - time())
            tracer = Tracer()
            found = traced_search(primitive, axes, rulebook, left, split, build, tracer if traced else None)
            few = found.split_reductions[:SPLIT_REDUCTIONS_PER_SPLIT]  # larger ones differ in where cheap ops stand
            tracer.count("not tried", found.count - len(found.structures) - len(few))
            yield Searched(replace(found, split_reductions=few), tracer.result())


def _saturation(rulebook: Rulebook, splits: int) -> Limits:
    """Limits of one split's e-graph; further with laws of a user's, where reaching them is an error."""
    nodes = min(NODES[rulebook.domain], max(FEWEST_NODES, 20 * NODES[rulebook.domain] // splits))
    return replace(Limits(), nodes=nodes) if rulebook.packaged else Limits()


def verify_structures(
    run: Run, structures: Sequence[AnyStructure], primitive: Graph, axes: Axes | str
) -> tuple[list[AnyStructure], int]:
    """The structures that pass the field check on a small instance, and how many fail it.

    A structure that the laws prove passes where the field cannot decide. The budget may end before all were checked.
    """
    options, equal = run.options, 0

    def progress(done: int, result: bool | None) -> None:
        nonlocal equal
        equal += result is True
        run.watch.observer("structures", done, len(structures), f"{equal} equal")

    common = (primitive, axes, options.trials, options.seed, options.until())
    verdicts = run.work.run("structures", _check_structures, common, structures, progress, lambda result: result is not None)
    if unchecked := verdicts.count(None):
        run.watch.notes.append(f"{unchecked} of {len(structures)} structures were not checked: the budget was spent")
    passed = [structure for structure, is_equal in zip(structures, verdicts, strict=True) if is_equal]
    return passed, verdicts.count(False)


def _check_structures(common: tuple[Graph, Axes, int, int, float], structures: Sequence[AnyStructure]) -> Iterator[bool | None]:
    primitive, axes, trials, seed, until = common
    check = FieldCheck(primitive, axes, seed, trials)
    for structure in structures:
        yield None if time() >= until else check.passes(structure)


def instantiate(
    run: Run, structures: Sequence[AnyStructure], primitive: Graph, axes: Axes | str, most: int | None = None
) -> list[Instances]:
    """For each structure its µGraphs, cheapest first: at most `most`; without it, as many as a tuner samples from."""
    options, count, best = run.options, 0, inf

    def progress(done: int, result: Instances) -> None:
        nonlocal count, best
        count += result.count
        best = min([best, *(us for _, us in result.graphs[:1])])
        text = f"{count} µGraphs" + (f", best {best:.1f} µs" if count else "")
        run.watch.observer("instantiate", done, len(structures), text)

    def is_final(result: Instances) -> bool:
        return most is not None and not result.cut

    common = (primitive, axes, run.device, filters_of(options), options.warps_untuned, most, options.until())
    instances: list[Instances] = run.work.run("instantiate", _instantiate, common, structures, progress, is_final)
    if unfinished := sum(entry.cut for entry in instances):
        run.watch.notes.append(f"{unfinished} of {len(structures)} structures were not given all extents: the budget was spent")
    return instances


def _instantiate(
    common: tuple[Graph, Axes, Device, Filters, int | None, int | None, float], structures: Sequence[AnyStructure]
) -> Iterator[Instances]:
    primitive, axes, device, filters, warps, most, until = common
    limits = tile_limits(device, ask_compiler=most is not None)  # without `most` all go to the tuner, which compiles them
    for structure in structures:
        instantiation = Instantiation(structure, primitive, axes, limits, filters)
        graphs = tuple(
            (graph if warps is None else with_warps(graph, warps), us)
            for _, graph, us in islice(best_first([instantiation], device, until), most or SAMPLED)
        )
        yield Instances(graphs, instantiation.built, time() >= until)
