"""The stages of a run that need no GPU: search, structures, instantiation, verification, compiling; each a plain function."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import loky

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
from mirage_eg.prove import Prover
from mirage_eg.results import Candidate, CompileRecord, Plan, Ranked, Watch
from mirage_eg.rulebook import Rulebook
from mirage_eg.search import SearchLimits, SearchResult, search
from mirage_eg.space import Chain
from mirage_eg.tune import Tuned
from mirage_eg.verdict import FloatCheck, Verdict
from mirage_eg.verify import Reference

CHAINS_PER_SPLIT = 6


def search_structures(
    primitive: Graph, rulebook: Rulebook, options: Options, watch: Watch, notes: list[str]
) -> tuple[Axes | None, SearchResult]:
    try:
        axes = infer_axes(primitive)
        if len(primitive.outputs) > options.max_outputs:
            raise UnsupportedError(f"{len(primitive.outputs)} outputs are more than the {options.max_outputs} of a block graph")
    except UnsupportedError as error:
        notes.append(f"no fused kernel was searched for: {error}; the result uses library kernels")
        return None, SearchResult((), (), (), 0.0)

    def progress(done: int, total: int, structures: int) -> None:
        watch.observer("search", done, total, f"{structures} structures")

    limits = SearchLimits(options.max_block_ops, seconds=options.budget, max_kernels=options.max_kernels)
    found = search(primitive, axes, rulebook, limits, on_progress=progress)
    for record in found.records:
        if not record.complete:
            notes.append(f"{record.split}: the search stopped after {record.visited:,} states, before its end")
        if record.saturation.stopped:
            notes.append(f"{record.split}: saturation {record.saturation.stopped}; the e-graph may prune too much")
    return axes, found


def few_chains(chains: Sequence[Chain]) -> list[Chain]:
    """The smallest chains of each split; larger ones of one split differ in where cheap ops stand."""
    taken: Counter[Split] = Counter()
    few = []
    for chain in chains:
        if taken[chain.split] < CHAINS_PER_SPLIT:
            taken[chain.split] += 1
            few.append(chain)
    return few


def verify_structures(
    structures: Sequence[Plan], primitive: Graph, axes: Axes | None, options: Options, watch: Watch
) -> tuple[list[Plan], int]:
    """The structures whose small instance equals the program's in random fields."""
    kept: list[Plan] = []
    references: dict[Graph, Reference] = {}  # structures of one split and grid share their small program
    for done, structure in enumerate(structures, 1):
        assert axes is not None
        program, candidate = small_instance(structure, primitive, axes)
        if program not in references:
            references[program] = Reference(program, draws=options.draws, seed=options.seed)
        if references[program].check(candidate).equal:
            kept.append(structure)
        watch.observer("structures", done, len(structures), f"{len(kept)} equal")
    return kept, len(structures) - len(kept)


def instantiate(
    structures: Sequence[Plan],
    primitive: Graph,
    axes: Axes | None,
    device: Device,
    options: Options,
    watch: Watch,
) -> list[list[Ranked]]:
    """For each structure that has any, its µGraphs with the cheapest first."""
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    limits = TileLimits(shared_memory=device.shared_memory, multiprocessors=device.multiprocessors)
    warps = options.warps and (4 if 4 in options.warps else options.warps[0])  # until tuning
    ranked = []
    for done, structure in enumerate(structures, 1):
        assert axes is not None
        graphs: Iterable[Graph] = instances(structure, primitive, axes, limits, filters)
        if warps is not None:
            graphs = (with_warps(graph, warps) for graph in graphs)
        costed = [Ranked(graph, predict_us(graph, device), structure.proved, fused=True) for graph in graphs]
        if costed:
            ranked.append(sorted(costed, key=lambda entry: entry.predicted_us))
        watch.observer("instantiate", done, len(structures), f"{sum(map(len, ranked))} µGraphs")
    return ranked


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


def verify_finalists(
    program: Graph, finalists: Sequence[Ranked], options: Options, watch: Watch
) -> tuple[list[tuple[Ranked, Verdict, FloatCheck]], int]:
    """Those that are equal in random fields, with what the packaged laws prove of them, and a float check of each."""
    reference = Reference(program, draws=options.draws, seed=options.seed)
    prover = Prover(program)
    kept = []

    def progress(done: int, total: int) -> None:  # fields are the first half of the work
        watch.observer("verify", done * len(finalists) // total, 2 * len(finalists), "fields")

    verdicts = reference.check_all([entry.graph for entry in finalists], progress)
    for done, (entry, (tested, _)) in enumerate(zip(finalists, verdicts, strict=True), len(finalists) + 1):
        verdict = with_proof(tested, f"candidate {done - len(finalists)}", entry.graph, prover, entry.proved)
        if verdict.equal:
            kept.append((entry, verdict, reference.float_check(entry.graph)))
        watch.observer("verify", done, 2 * len(finalists), f"{len(kept)} equal")
    return kept, len(finalists) - len(kept)


def compile_verified(
    program: Graph,
    verified: Sequence[tuple[Ranked, Verdict, FloatCheck]],
    tuned: Mapping[Graph, Tuned],
    options: Options,
    watch: Watch,
) -> list[Candidate]:
    """Emit as tuned and compile, in parallel processes where there is more than one core."""
    sources = [
        tuned[entry.graph].variant.source if entry.graph in tuned else emit(entry.graph, program=program)
        for entry, _, _ in verified
    ]
    candidates = []
    results = _map(_compile_one, [(source, options.target) for source in sources], options.jobs or os.cpu_count() or 1)
    for done, (record, source, (entry, verdict, check)) in enumerate(zip(results, sources, verified, strict=True), 1):
        graph, measured = entry.graph, None
        if entry.graph in tuned:
            measured = tuned[entry.graph].us
            graph = with_warps(graph, tuned[entry.graph].variant.schedule.num_warps or ())
        proved = "proved" in verdict.known_by
        candidates.append(Candidate(graph, source, entry.predicted_us, measured, verdict, check, record, proved, entry.fused))
        watch.observer("compile", done, len(sources), f"{sum(candidate.compile.ok for candidate in candidates)} compiled")
    return candidates


def _map(function: Callable[[Any], Any], items: Sequence[Any], jobs: int) -> Iterator[Any]:
    """Map in fresh processes: a forked one would share the state of CUDA and of e-graphs, and multiprocessing's spawned one
    would run the caller's script again."""
    if jobs == 1 or len(items) <= 2:
        yield from map(function, items)
        return
    with loky.ProcessPoolExecutor(min(jobs, len(items))) as executor:
        yield from executor.map(function, items)


def _compile_one(job: tuple[str, str]) -> CompileRecord:
    source, target = job
    kernels = tuple(compile_source(source, target))
    errors = [kernel.error for kernel in kernels if not kernel.ok]
    return CompileRecord(
        target,
        not errors,
        _largest(kernel.shared_memory for kernel in kernels),
        _largest(kernel.registers for kernel in kernels),
        _largest(kernel.spills for kernel in kernels),
        errors[0] if errors else None,
        kernels,
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
