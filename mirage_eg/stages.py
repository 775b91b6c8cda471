"""The stages of a run that need no GPU: search, structures, instantiation, verification, compiling; each a plain function.

What is done to many items alike goes through `work`: a function that gives a result for each item, which runs anywhere.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import inf
from time import perf_counter, time

from mirage_eg.backends.compile import compile_source
from mirage_eg.backends.emit import emit
from mirage_eg.backends.warps import with_warps
from mirage_eg.cost import predict_us
from mirage_eg.devices import Device
from mirage_eg.expression import Split
from mirage_eg.instantiate import Filters, TileLimits, blocks_of, instances, small_instance
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.judge import with_proof
from mirage_eg.options import Options
from mirage_eg.oracle import oracle_builder
from mirage_eg.phrase import phrase
from mirage_eg.probe import Part, Probe
from mirage_eg.prove import Prover
from mirage_eg.results import Candidate, CompileRecord, Instances, Plan, Ranked, Searched, Watch
from mirage_eg.rulebook import Rulebook
from mirage_eg.search import SearchLimits, SearchResult, split_choices
from mirage_eg.segments import Segmenter, SegmentLimits
from mirage_eg.trace import Tracer
from mirage_eg.traced_search import search_heard
from mirage_eg.tune import Tuned
from mirage_eg.verdict import FloatCheck, Verdict
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
    limits = TileLimits(shared_memory=device.shared_memory, multiprocessors=device.multiprocessors, target=device.target)
    for structure in structures:
        graphs: Iterable[Graph] = instances(structure, primitive, axes, limits, filters)
        if warps is not None:
            graphs = (with_warps(graph, warps) for graph in graphs)
        costed = [Ranked(graph, predict_us(graph, device), structure.proved, fused=True) for graph in graphs]
        costed.sort(key=lambda entry: entry.predicted_us)
        yield Instances(tuple(costed[:most]), len(costed))


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


Verified = tuple[Ranked, Verdict, FloatCheck]


def verify_finalists(
    program: Graph,
    finalists: Sequence[Ranked],
    inside: tuple[Graph, Sequence[Part]],
    rulebook: Rulebook,
    options: Options,
    watch: Watch,
    work: Work,
) -> tuple[list[Verified], list[Verdict], list[Verdict]]:
    """Those that are equal in random fields, with what the indexed laws prove of them, and a float check of each.

    Also the verdicts on the others, and on the kernels `inside`: where they stand in a form of the program in primitive ops.
    """

    def verify() -> tuple[list[tuple[Verdict, FloatCheck | None]], list[Verdict]]:
        return _verify_at_full_size(program, finalists, inside, rulebook, options, watch)

    item = (tuple((entry.graph, entry.proved) for entry in finalists), *inside)
    verdicts, parts = work.once("verify", item, verify)
    kept = [(entry, verdict, check) for entry, (verdict, check) in zip(finalists, verdicts, strict=True) if check is not None]
    return kept, [verdict for verdict, check in verdicts if check is None], parts


def _verify_at_full_size(
    program: Graph,
    finalists: Sequence[Ranked],
    inside: tuple[Graph, Sequence[Part]],
    rulebook: Rulebook,
    options: Options,
    watch: Watch,
) -> tuple[list[tuple[Verdict, FloatCheck | None]], list[Verdict]]:
    """In this process alone: inputs of full size are large, and stand in memory once."""
    reference = Reference(program, draws=options.draws, seed=options.seed)
    prover = Prover(program, rulebook if rulebook.domain == "indexed" else None)

    def progress(done: int, total: int) -> None:  # fields are the first half of the work
        watch.observer("verify", done * len(finalists) // total, 2 * len(finalists), "fields")

    probe = Probe(*inside) if inside[1] else None
    tested = [verdict for verdict, _ in reference.check_all([entry.graph for entry in finalists], progress, probe)]
    verdicts = [
        with_proof(verdict, f"candidate {place}", entry.graph, prover, entry.proved)
        for place, (entry, verdict) in enumerate(zip(finalists, tested, strict=False))
    ]
    equal = [entry.graph for entry, verdict in zip(finalists, verdicts, strict=True) if verdict.equal]

    def progress_of_floats(done: int, total: int) -> None:
        watch.observer(
            "verify", len(finalists) + done * len(finalists) // total, 2 * len(finalists), f"{len(equal)} equal, floats"
        )

    checks = iter(reference.float_check_all(equal, progress_of_floats))
    return [(verdict, next(checks) if verdict.equal else None) for verdict in verdicts], tested[len(finalists) :]


def compile_verified(
    program: Graph,
    verified: Sequence[tuple[Ranked, Verdict, FloatCheck]],
    tuned: Mapping[Graph, Tuned],
    options: Options,
    watch: Watch,
    work: Work,
) -> list[Candidate]:
    """Emit as tuned and compile."""
    sources = [
        tuned[entry.graph].variant.source if entry.graph in tuned else emit(entry.graph, program=program)
        for entry, _, _ in verified
    ]
    compiled = 0

    def progress(done: int, record: CompileRecord) -> None:
        nonlocal compiled
        compiled += record.ok
        watch.observer("compile", done, len(sources), f"{compiled} compiled")

    records = work.run("compile", _compile_sources, options.target, sources, progress)
    candidates = []
    for record, source, (entry, verdict, check) in zip(records, sources, verified, strict=True):
        graph, measured = entry.graph, None
        if entry.graph in tuned:
            measured = tuned[entry.graph].us
            graph = with_warps(graph, tuned[entry.graph].variant.schedule.num_warps or ())
        proved = "proved" in verdict.known_by
        candidates.append(Candidate(graph, source, entry.predicted_us, measured, verdict, check, record, proved, entry.fused))
    return candidates


def _compile_sources(target: str, sources: Sequence[str]) -> Iterator[CompileRecord]:
    for source in sources:
        yield CompileRecord(target, tuple(compile_source(source, target)))
