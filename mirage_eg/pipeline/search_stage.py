"""The first stages of a run: search, structures, instantiation; each a plain function.

What is done to many items alike goes through `work`: a function that gives a result for each item, which runs anywhere.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice, zip_longest
from math import inf
from time import perf_counter, time

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.egraph.expression import Split
from mirage_eg.egraph.oracle import Limits, oracle_builder
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.phrase import phrase
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.work import Work
from mirage_eg.pipeline.stage_records import Instances, Plan, Ranked, Searched, Watch
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.instantiate.instantiate import Instantiation, small_instance
from mirage_eg.search.instantiate.limits import Filters, TileLimits
from mirage_eg.search.partition.segments import Segmenter, SegmentLimits
from mirage_eg.search.search import NOT_BEGUN, SearchLimits, SearchResult, SplitRecord, split_choices
from mirage_eg.search.trace import Tracer, traced_search
from mirage_eg.verify.reference import Reference

SPLIT_REDUCTIONS_PER_SPLIT = 6
ALIKE = 8  # structures of each split that load alike, smallest first; others differ in where cheap ops stand
STATES, FEWEST_STATES = 100_000, 1_000  # of all splits together, in equal shares; of each at least
NODES, FEWEST_NODES = {"indexed": 10_000, "abstract": 50_000}, 2_000  # of the e-graph of one of up to 20 splits
SAMPLED = 256  # µGraphs of each structure, of which a tuner tries some


def search_structures(
    primitive: Graph,
    rulebook: Rulebook,
    options: Options,
    watch: Watch,
    work: Work,
    notes: list[str],
    tracer: Tracer | None = None,
) -> tuple[Axes | str, SearchResult]:
    """The axes of the program, or why there are none, and all structures found; of chains the smallest of each split.

    One work item a split.
    """
    try:
        if len(primitive.outputs) > options.max_outputs:
            raise UnsupportedError(f"{len(primitive.outputs)} outputs are more than the {options.max_outputs} of a block graph")
        if (reason := Segmenter(primitive, SegmentLimits(max_ops=options.max_block_ops)).why_not_one()) is not None:
            raise UnsupportedError(reason)
        axes = infer_axes(primitive)
    except UnsupportedError as error:
        notes.append(f"not searched as one kernel: {error}")
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
        result = searched.found
        states += sum(record.visited for record in result.records)
        structures += sum(record.structures for record in result.records)
        watch.observer("search", done, len(choices), f"{states:,} states, {structures} structures")

    def is_final(searched: Searched) -> bool:
        return time() < until or all(record.complete for record in searched.found.records)

    common = (primitive, axes, rulebook, limits, len(choices), until, tracer is not None)
    stage = "search" if tracer is None else "traced search"
    searched: list[Searched] = work.run(stage, _search_splits, common, choices, progress, is_final)
    found = [entry.found for entry in searched]
    if tracer is not None:
        tracer.extend(traced for entry in searched for traced in entry.traced)
    records = [record for result in found for record in result.records]
    if left_out := sum(record.saturation == NOT_BEGUN for record in records):
        notes.append(f"{left_out} of {len(choices)} splits were not searched: the budget was spent")
    begun = [record for record in records if record.saturation != NOT_BEGUN]
    if stopped := [record for record in begun if not record.complete]:
        visited = sum(record.visited for record in stopped)
        notes.append(f"{_named(stopped)}: the search stopped after {visited:,} states, before its end")
    for limit, cut in groupby(sorted(begun, key=_limit), key=_limit):
        if limit:
            notes.append(f"{_named([*cut])}: saturation {limit}; the e-graph may prune too much")
    return axes, SearchResult(
        tuple(sorted((structure for result in found for structure in result.structures), key=lambda plan: plan.ops)),
        tuple(sorted((chain for result in found for chain in result.split_reductions), key=lambda plan: plan.ops)),
        tuple(records),
        perf_counter() - begin,
    )


def _limit(record: SplitRecord) -> str:
    return record.saturation.stopped or ""


def _named(records: Sequence[SplitRecord]) -> str:
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
            tracer.count("not tried", sum(record.structures for record in found.records) - len(found.structures) - len(few))
            yield Searched(replace(found, split_reductions=few), tracer.result())


def _saturation(rulebook: Rulebook, splits: int) -> Limits:
    """Limits of one split's e-graph; further with laws of a user's, where reaching them is an error."""
    nodes = min(NODES[rulebook.domain], max(FEWEST_NODES, 20 * NODES[rulebook.domain] // splits))
    return replace(Limits(), nodes=nodes) if rulebook.packaged else Limits()


def verify_structures(
    structures: Sequence[Plan],
    primitive: Graph,
    axes: Axes | str,
    options: Options,
    watch: Watch,
    work: Work,
    notes: list[str],
) -> tuple[list[Plan], int]:
    """The structures whose small instance equals the program's in random fields, or is proved where the field cannot tell.

    Also how many do not. The budget may end before all were looked at.
    """
    equal = 0

    def progress(done: int, result: bool | None) -> None:
        nonlocal equal
        equal += result is True
        watch.observer("structures", done, len(structures), f"{equal} equal")

    common = (primitive, axes, options.trials, options.seed, options.until())
    verdicts = work.run("structures", _check_structures, common, structures, progress, lambda result: result is not None)
    if unchecked := verdicts.count(None):
        notes.append(f"{unchecked} of {len(structures)} structures were not checked: the budget was spent")
    kept = [structure for structure, is_equal in zip(structures, verdicts, strict=True) if is_equal]
    return kept, verdicts.count(False)


def _check_structures(common: tuple[Graph, Axes, int, int, float], structures: Sequence[Plan]) -> Iterator[bool | None]:
    primitive, axes, trials, seed, until = common
    references: dict[Graph, Reference] = {}  # structures of one split and grid share their small program
    for structure in structures:
        if time() >= until:
            yield None
            continue
        program, candidate = small_instance(structure, primitive, axes)
        if program not in references:
            references[program] = Reference(program, trials=trials, seed=seed)
        yield references[program].check(candidate).worth_full_size(structure.proved)


def instantiate(
    structures: Sequence[Plan],
    primitive: Graph,
    axes: Axes | str,
    device: Device,
    options: Options,
    watch: Watch,
    work: Work,
    notes: list[str],
    most: int | None = None,
) -> list[Instances]:
    """For each structure its µGraphs, cheapest first: at most `most`; without it, as many as a tuner samples from."""
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    count, best = 0, inf

    def progress(done: int, result: Instances) -> None:
        nonlocal count, best
        count += result.count
        best = min([best, *(entry.predicted_us for entry in result.ranked[:1])])
        watch.observer("instantiate", done, len(structures), f"{count} µGraphs" + (f", best {best:.1f} µs" if count else ""))

    def is_final(result: Instances) -> bool:
        return most is not None and not result.cut

    common = (primitive, axes, device, filters, options.warps_untuned, most, options.until())
    made: list[Instances] = work.run("instantiate", _instantiate, common, structures, progress, is_final)
    if unfinished := sum(entry.cut for entry in made):
        notes.append(f"{unfinished} of {len(structures)} structures were not given all extents: the budget was spent")
    return made


def _instantiate(
    common: tuple[Graph, Axes, Device, Filters, int | None, int | None, float], structures: Sequence[Plan]
) -> Iterator[Instances]:
    primitive, axes, device, filters, warps, most, until = common
    limits = TileLimits(
        shared_memory=device.shared_memory,
        multiprocessors=device.multiprocessors,
        target=device.target,
        ask_compiler=most is not None,  # all of them go to the tuner, which compiles what it tries
    )
    for structure in structures:
        instantiation = Instantiation(structure, primitive, axes, limits, filters, until)
        fitting = (
            Ranked(graph if warps is None else with_warps(graph, warps), us, structure.proved, fused=True)
            for us, graph in instantiation.cheapest(device)
            if instantiation.fits_compiler(graph)
        )
        ranked = tuple(islice(fitting, most or SAMPLED))
        yield Instances(ranked, instantiation.built, time() >= until)


def diverse(ranked: Sequence[Sequence[Ranked]], top: int) -> list[Ranked]:
    """Different structures first: the best µGraph of each by cost, then the second best of each, and so on.

    The best of each number of kernels stands in front: a cost model may be wrong about what launches cost.
    """
    rounds = (sorted(filter(None, entries), key=lambda entry: entry.predicted_us) for entries in zip_longest(*ranked))
    ordered = [entry for entries in rounds for entry in entries]
    leaders: dict[int, Ranked] = {}
    for entry in ordered:
        leaders.setdefault(len(entry.graph.blocks), entry)
    return (
        sorted(leaders.values(), key=lambda entry: entry.predicted_us)[:top]
        + [entry for entry in ordered if all(entry is not leader for leader in leaders.values())][: max(0, top - len(leaders))]
    )


def unlike_first(ranked: Sequence[Sequence[Ranked]]) -> list[Sequence[Ranked]]:
    """By predicted time, but the best of each kind of µGraph before the second of any: kinds are told by their phrase."""
    seen: Counter[str] = Counter()
    order = []
    for entries in sorted(ranked, key=lambda entries: entries[0].predicted_us):
        kind = phrase(entries[0].graph)
        order.append((seen[kind], entries))
        seen[kind] += 1
    return [entries for _, entries in sorted(order, key=lambda pair: pair[0])]
