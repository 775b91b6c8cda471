"""The first stages of a run: search, structures, instantiation; each a plain function.

What is done to many items alike goes through `work`: a function that gives a result for each item, which runs anywhere.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from math import inf
from time import perf_counter, time

from mirage_eg.backends.warps import with_warps
from mirage_eg.cost import predict_us
from mirage_eg.devices import Device
from mirage_eg.expression import Split
from mirage_eg.instantiate import instances, small_instance
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.limits import Filters, TileLimits, blocks_of, really_fits
from mirage_eg.options import Options
from mirage_eg.oracle import oracle_builder
from mirage_eg.phrase import phrase
from mirage_eg.results import Instances, Plan, Ranked, Searched, Watch
from mirage_eg.rulebook import Rulebook
from mirage_eg.search import SearchLimits, SearchResult, split_choices
from mirage_eg.segments import Segmenter, SegmentLimits
from mirage_eg.trace import Tracer
from mirage_eg.traced_search import search_heard
from mirage_eg.verify import Reference
from mirage_eg.work import Work

CHAINS_PER_SPLIT = 6


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
        axes = infer_axes(primitive)
        if len(primitive.outputs) > options.max_outputs:
            raise UnsupportedError(f"{len(primitive.outputs)} outputs are more than the {options.max_outputs} of a block graph")
        if (reason := Segmenter(primitive, SegmentLimits(max_ops=options.max_block_ops)).why_not_one()) is not None:
            raise UnsupportedError(reason)
    except UnsupportedError as error:
        notes.append(f"not searched as one kernel: {error}")
        return str(error), SearchResult((), (), (), 0.0)
    begin = perf_counter()
    until = None if options.budget is None else time() + options.budget
    limits = SearchLimits(options.max_block_ops, max_kernels=options.kernels_of_search, max_outputs=options.max_outputs)
    choices = split_choices(axes, limits)
    states = structures = 0

    def progress(done: int, searched: Searched) -> None:
        nonlocal states, structures
        result = searched.found
        states += sum(record.visited for record in result.records)
        structures += sum(record.structures for record in result.records)
        watch.observer("search", done, len(choices), f"{states:,} states, {structures} structures")

    def is_final(searched: Searched) -> bool:
        return until is None or time() < until or all(record.complete for record in searched.found.records)

    common = (primitive, axes, rulebook, limits, until, tracer is not None)
    stage = "search" if tracer is None else "traced search"
    searched: list[Searched] = work.run(stage, _search_splits, common, choices, progress, is_final)
    found = [entry.found for entry in searched]
    if tracer is not None:
        tracer.extend(traced for entry in searched for traced in entry.traced)
    for record in (record for result in found for record in result.records):
        if not record.complete:
            notes.append(f"{record.split}: the search stopped after {record.visited:,} states, before its end")
        if record.saturation.stopped:
            notes.append(f"{record.split}: saturation {record.saturation.stopped}; the e-graph may prune too much")
    return axes, SearchResult(
        tuple(sorted((structure for result in found for structure in result.structures), key=lambda plan: plan.ops)),
        tuple(sorted((chain for result in found for chain in result.chains), key=lambda plan: plan.ops)),
        tuple(record for result in found for record in result.records),
        perf_counter() - begin,
    )


def _search_splits(
    common: tuple[Graph, Axes, Rulebook, SearchLimits, float | None, bool], choices: Sequence[Split]
) -> Iterator[Searched]:
    primitive, axes, rulebook, limits, until, traced = common
    with oracle_builder(rulebook) as build:
        for split in choices:
            left = replace(limits, seconds=None if until is None else max(0.0, until - time()))
            tracer = Tracer()
            found = search_heard(primitive, axes, rulebook, left, split, build, tracer if traced else None)
            few = found.chains[:CHAINS_PER_SPLIT]  # larger ones differ in where cheap ops stand
            yield Searched(replace(found, chains=few), tracer.result())


def verify_structures(
    structures: Sequence[Plan], primitive: Graph, axes: Axes | str, options: Options, watch: Watch, work: Work
) -> tuple[list[Plan], int]:
    """The structures whose small instance equals the program's in random fields, or is proved where the field cannot tell."""
    equal = 0

    def progress(done: int, result: bool) -> None:
        nonlocal equal
        equal += result
        watch.observer("structures", done, len(structures), f"{equal} equal")

    common = (primitive, axes, options.draws, options.seed)
    verdicts = work.run("structures", _check_structures, common, structures, progress)
    kept = [structure for structure, is_equal in zip(structures, verdicts, strict=True) if is_equal]
    return kept, len(structures) - len(kept)


def _check_structures(common: tuple[Graph, Axes, int, int], structures: Sequence[Plan]) -> Iterator[bool]:
    primitive, axes, draws, seed = common
    references: dict[Graph, Reference] = {}  # structures of one split and grid share their small program
    for structure in structures:
        program, candidate = small_instance(structure, primitive, axes)
        if program not in references:
            references[program] = Reference(program, draws=draws, seed=seed)
        yield references[program].check(candidate).goes_on(structure.proved)


def instantiate(
    structures: Sequence[Plan],
    primitive: Graph,
    axes: Axes | str,
    device: Device,
    options: Options,
    watch: Watch,
    work: Work,
    most: int | None = None,
) -> list[Instances]:
    """For each structure its µGraphs, the cheapest first, at most `most` of each."""
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    warps = options.warps and (4 if 4 in options.warps else options.warps[0])  # until tuning
    count, best = 0, inf

    def progress(done: int, result: Instances) -> None:
        nonlocal count, best
        count += result.count
        best = min([best, *(entry.predicted_us for entry in result.ranked[:1])])
        watch.observer("instantiate", done, len(structures), f"{count} µGraphs" + (f", best {best:.1f} µs" if count else ""))

    common = (primitive, axes, device, filters, warps, most)
    return work.run("instantiate", _instantiate, common, structures, progress, lambda result: most is not None)


def _instantiate(
    common: tuple[Graph, Axes, Device, Filters, int | None, int | None], structures: Sequence[Plan]
) -> Iterator[Instances]:
    primitive, axes, device, filters, warps, most = common
    limits = TileLimits(
        shared_memory=device.shared_memory,
        multiprocessors=device.multiprocessors,
        target=device.target,
        asking=most is not None,  # all of them go to the tuner, which compiles what it tries
    )
    for structure in structures:
        graphs: Iterable[Graph] = instances(structure, primitive, axes, limits, filters)
        if warps is not None:
            graphs = (with_warps(graph, warps) for graph in graphs)
        costed = [Ranked(graph, predict_us(graph, device), structure.proved, fused=True) for graph in graphs]
        costed.sort(key=lambda entry: entry.predicted_us)
        fitting = (entry for entry in costed if really_fits(entry.graph, limits))
        yield Instances(tuple(islice(fitting, most)), len(costed))


def diverse(ranked: Sequence[Sequence[Ranked]], top: int) -> list[Ranked]:
    """Different structures first: the best µGraph of each by cost, then the second best of each, and so on.

    The best of each number of kernels stands in front: a cost model may be wrong about what launches cost.
    """
    rounds = (sorted(filter(None, entries), key=lambda entry: entry.predicted_us) for entries in zip_longest(*ranked))
    ordered = [entry for entries in rounds for entry in entries]
    leaders: dict[int, Ranked] = {}
    for entry in ordered:
        leaders.setdefault(len(blocks_of(entry.graph)), entry)
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
