"""The whole way: a program in, ranked verified compiled µGraphs out. Each stage is a function that can be called alone."""

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from itertools import zip_longest
from math import inf
from time import perf_counter
from typing import Any

import loky

from mirage_eg.backends.compile import KernelCompile, compile_source
from mirage_eg.backends.emit import emit
from mirage_eg.cost import predict, predict_us
from mirage_eg.devices import Device, device_for
from mirage_eg.expression import Split
from mirage_eg.instantiate import Filters, TileLimits, blocks_of, instances, small_instance
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import MirageError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.judge import with_proof
from mirage_eg.options import Options
from mirage_eg.prove import Prover
from mirage_eg.rulebook import Rulebook, load_rules
from mirage_eg.search import SearchLimits, SearchResult, search
from mirage_eg.shifts import drop_shifts
from mirage_eg.space import Chain, Structure
from mirage_eg.tune import Record, Tuned, Tuning, tune
from mirage_eg.verdict import FloatCheck, Verdict
from mirage_eg.verify import Reference
from mirage_eg.version import __version__

Observer = Callable[[str, int, int | None, str], None]
Plan = Structure | Chain
CHAINS_PER_SPLIT = 6


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """What the compiler said of a whole µGraph: the largest shared memory and registers, all spills, the first error."""

    target: str
    ok: bool
    shared_memory: int | None
    registers: int | None
    spills: int | None
    error: str | None
    kernels: tuple[KernelCompile, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One µGraph that passed verification; `proved` says that the indexed laws show it equal to the program."""

    graph: Graph
    source: str
    predicted_us: float
    measured_us: float | None
    verdict: Verdict
    float_check: FloatCheck
    compile: CompileRecord
    proved: bool
    fused: bool


@dataclass(frozen=True, slots=True)
class Result:
    """The best µGraphs, best first, the report of the run, and every measurement of the tuning, if there was a GPU."""

    candidates: tuple[Candidate, ...]
    report: dict[str, Any]
    measurements: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ranked:
    graph: Graph
    predicted_us: float
    proved: bool
    fused: bool


def optimize(
    name: str, program: Graph, options: Options, observer: Observer | None = None, tuning: Tuning | None = None
) -> Result:
    """Superoptimize `program`.

    Always gives at least one candidate: the program itself with one library kernel per op. `tuning` says how to tune where
    there is a GPU.
    """
    on_gpu = _uses_gpu(options)
    watch = _Watch(observer or (lambda stage, done, total, text: None))
    device = device_for(options.target)
    rulebook = load_rules(options.domain, options.rules, options.without)
    notes: list[str] = []
    if options.blockdims is not None:
        notes.append("blockdims restrict nothing yet: warps a block are a choice of the schedule")
    with watch.stage("search"):
        primitive = drop_shifts(expand(program))
        if primitive != expand(program):
            notes.append("exponentials shifted by their maximum are searched unshifted: no output depends on the shift")
        axes, found = _search(primitive, rulebook, options, watch, notes)
    with watch.stage("structures"):
        plans: list[Plan] = [*found.structures, *_few_chains(found.chains)]
        structures, small_rejected = _verify_structures(plans, primitive, axes, options, watch)
    with watch.stage("instantiate"):
        ranked = _instantiate(structures, primitive, axes, device, options, watch)
        finalists = _diverse(ranked, options.top)
    tuned: dict[Graph, Tuned] = {}
    measurements: list[Record] = []
    if on_gpu:
        with watch.stage("tune"):
            written = _Ranked(program, predict_us(primitive, device), proved=True, fused=False)
            pool = [[written], *sorted(ranked, key=lambda entries: entries[0].predicted_us)]
            tuned = _tune(program, pool, options, tuning or Tuning(), measurements, watch)
            fastest = [entry for entries in pool for entry in entries if entry.graph in tuned]
            finalists = sorted(fastest, key=lambda entry: tuned[entry.graph].us)[: options.top] or finalists
    if axes is not None and not ranked:
        notes.append(_why_nothing(found, structures))
    library = _Ranked(expand(program), predict_us(primitive, device), proved=True, fused=False)
    with watch.stage("verify"):
        verified, rejected = _verify_finalists(program, [*finalists, library], options, watch)
    with watch.stage("compile"):
        candidates = _compile(program, verified, tuned, options, watch)
    device_name = "cpu"
    if on_gpu:
        with watch.stage("time"):
            candidates, device_name = _time(candidates, tuned, watch)
    candidates.sort(key=_rank)
    report = _report(name, options, rulebook, device_name, found, candidates, watch, notes)
    report["search"]["candidates"] = len(finalists) + 1
    report["search"]["instances"] = sum(map(len, ranked))
    report["verify"]["accepted"] = len(verified)
    report["verify"]["rejected"] = rejected
    report["verify"]["structures_accepted"] = len(structures)
    report["verify"]["structures_rejected"] = small_rejected
    return Result(tuple(candidates), report, tuple(measurements))


class _Watch:
    """Seconds per stage, and the way to the observer."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.seconds, self.start = observer, dict[str, float](), perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        self.observer(name, 0, None, "")
        yield
        self.seconds[name] = perf_counter() - begin

    def total(self) -> float:
        return perf_counter() - self.start


def _search(
    primitive: Graph, rulebook: Rulebook, options: Options, watch: _Watch, notes: list[str]
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


def _few_chains(chains: Sequence[Chain]) -> list[Chain]:
    """The smallest chains of each split; larger ones of one split differ in where cheap ops stand."""
    taken: Counter[Split] = Counter()
    few = []
    for chain in chains:
        if taken[chain.split] < CHAINS_PER_SPLIT:
            taken[chain.split] += 1
            few.append(chain)
    return few


def _verify_structures(
    structures: Sequence[Plan], primitive: Graph, axes: Axes | None, options: Options, watch: _Watch
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


def _instantiate(
    structures: Sequence[Plan],
    primitive: Graph,
    axes: Axes | None,
    device: Device,
    options: Options,
    watch: _Watch,
) -> list[list[_Ranked]]:
    """For each structure that has any, its µGraphs with the cheapest first."""
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    limits = TileLimits(shared_memory=device.shared_memory, multiprocessors=device.multiprocessors)
    ranked = []
    for done, structure in enumerate(structures, 1):
        assert axes is not None
        graphs = instances(structure, primitive, axes, limits, filters)
        costed = [_Ranked(graph, predict_us(graph, device), structure.proved, fused=True) for graph in graphs]
        if costed:
            ranked.append(sorted(costed, key=lambda entry: entry.predicted_us))
        watch.observer("instantiate", done, len(structures), f"{sum(map(len, ranked))} µGraphs")
    return ranked


def _diverse(ranked: Sequence[Sequence[_Ranked]], top: int) -> list[_Ranked]:
    """Different structures first: the best µGraph of each by cost, then the second best of each, and so on.

    The best of each number of kernels stands in front: a cost model may be wrong about what launches cost.
    """
    rounds = (sorted(filter(None, entries), key=lambda entry: entry.predicted_us) for entries in zip_longest(*ranked))
    ordered = [entry for entries in rounds for entry in entries]
    leaders: dict[int, _Ranked] = {}
    for entry in ordered:
        leaders.setdefault(len(blocks_of(entry.graph)), entry)
    return (
        sorted(leaders.values(), key=lambda entry: entry.predicted_us)[:top]
        + [entry for entry in ordered if all(entry is not leader for leader in leaders.values())][: max(0, top - len(leaders))]
    )


def _verify_finalists(
    program: Graph, finalists: Sequence[_Ranked], options: Options, watch: _Watch
) -> tuple[list[tuple[_Ranked, Verdict, FloatCheck]], int]:
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


def _uses_gpu(options: Options) -> bool:
    """Whether candidates are run on a GPU here."""
    from mirage_eg.backends.timing import gpu_available

    if options.device == "cpu":
        return False
    if gpu_available():
        return True
    if options.device == "cuda":
        raise MirageError("device: got cuda, but no CUDA GPU is usable here; use --device cpu to rank by the cost model")
    return False


def _tune(
    program: Graph,
    ranked: Sequence[Sequence[_Ranked]],
    options: Options,
    tuning: Tuning,
    measurements: list[Record],
    watch: _Watch,
) -> dict[Graph, Tuned]:
    """The fastest schedule of each µGraph that was timed with care on the GPU and is right, fastest first."""
    from mirage_eg.backends.trial import Trials

    def record(line: Record) -> None:
        measurements.append(line)
        tuning.record(line)
        best = min((entry["us"] for entry in measurements if entry["us"] is not None), default=inf)
        watch.observer("tune", len(measurements), None, f"best {best:.1f} µs")

    graphs = [[entry.graph for entry in entries] for entries in ranked]
    timer = tuning.wrap(Trials(emit(program, program=program), options.target, options.seed))
    with loky.ProcessPoolExecutor(options.jobs or os.cpu_count() or 1) as executor:
        found = tune(
            program,
            [[expand(program)], *graphs],
            options.target,
            timer,
            effort=tuning.effort,
            parallel=executor.map,
            gpu=tuning.gpu,
            record=record,
        )
    best: dict[Graph, Tuned] = {}
    for entry in found:
        if entry.timing is not None:
            best.setdefault(entry.variant.graph, entry)
    return best


def _compile(
    program: Graph,
    verified: Sequence[tuple[_Ranked, Verdict, FloatCheck]],
    tuned: Mapping[Graph, Tuned],
    options: Options,
    watch: _Watch,
) -> list[Candidate]:
    """Emit as tuned and compile, in parallel processes where there is more than one core."""
    sources = [
        tuned[entry.graph].variant.source if entry.graph in tuned else emit(entry.graph, program=program)
        for entry, _, _ in verified
    ]
    candidates = []
    results = _map(_compile_one, [(source, options.target) for source in sources], options.jobs or os.cpu_count() or 1)
    for done, (record, source, (entry, verdict, check)) in enumerate(zip(results, sources, verified, strict=True), 1):
        candidates.append(
            Candidate(
                entry.graph, source, entry.predicted_us, None, verdict, check, record, "proved" in verdict.known_by, entry.fused
            )
        )
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


def _time(candidates: Sequence[Candidate], tuned: Mapping[Graph, Tuned], watch: _Watch) -> tuple[list[Candidate], str]:
    """The candidates with their measured times; those that tuning has not timed are timed now."""
    from mirage_eg.backends.timing import gpu_name, time_source

    timed = []
    for done, candidate in enumerate(candidates, 1):
        if candidate.graph in tuned:
            measured: float | None = tuned[candidate.graph].us
        else:
            measured = time_source(candidate.source).warm_us if candidate.compile.ok else None
        timed.append(replace(candidate, measured_us=measured))
        best = min((entry.measured_us for entry in timed if entry.measured_us is not None), default=inf)
        watch.observer("time", done, len(candidates), f"best {best:.1f} µs")
    return timed, gpu_name()


def _rank(candidate: Candidate) -> tuple[bool, float]:
    us = candidate.predicted_us if candidate.measured_us is None else candidate.measured_us
    return not candidate.compile.ok, us


def _why_nothing(found: SearchResult, structures: Sequence[Plan]) -> str:
    """One sentence on why no fused kernel came out."""
    if not found.structures and not found.chains:
        return (
            "no fused kernel was found: no block graph within the limit of ops is equal to the program by the loaded laws; "
            "raise --max-block-ops or add a law"
        )
    if not structures:
        return "no fused kernel was found: every structure failed the field check"
    return (
        f"no fused kernel was found: the {len(structures)} structures need tiles larger than a block can hold "
        "or none of their µGraphs passes the filters"
    )


def _report(
    name: str,
    options: Options,
    rulebook: Rulebook,
    device_name: str,
    found: SearchResult,
    candidates: Sequence[Candidate],
    watch: _Watch,
    notes: Sequence[str],
) -> dict[str, Any]:
    best = candidates[0]
    saturations = [record.saturation for record in found.records]
    pruned: dict[str, int] = {}
    for record in found.records:
        for reason, count in record.pruned.items():
            pruned[reason] = pruned.get(reason, 0) + count
    blocks = [item["graph"] for item in best.graph.nodes if item.op == "block"]
    return {
        "program": name,
        "domain": options.domain,
        "theories": {theory.path: theory.sha256 for theory in rulebook.theories},
        "device": device_name,
        "target": options.target,
        "egraph": {
            "count": len(saturations),
            "nodes": sum(saturation.nodes for saturation in saturations),
            "classes": sum(saturation.classes for saturation in saturations),
            "saturated": all(saturation.saturated for saturation in saturations),
            "seconds": sum(saturation.seconds for saturation in saturations),
        },
        "egraphs": [{"split": record.split} | asdict(record.saturation) for record in found.records],
        "search": {
            "visited": sum(record.visited for record in found.records),
            "pruned": pruned,
            "structures": len(found.structures),
            "chains": len(found.chains),
            "complete": all(record.complete for record in found.records),
            "seconds": found.seconds,
        },
        "verify": {
            "draws": best.verdict.draws,
            "p": best.verdict.p,
            "q": best.verdict.q,
            "error_bound": best.verdict.error_bound,
            "bound_reason": best.verdict.bound_reason,
            "known_by": list(best.verdict.known_by),
            "laws": list(best.verdict.laws),
        },
        "compile": asdict(best.compile),
        "best": {
            "kernels": len(predict(best.graph, device_for(options.target))),
            "grid": [list(block.grid) for block in blocks],
            "loop": [block.loop for block in blocks],
            "predicted_us": best.predicted_us,
            "measured_us": best.measured_us,
            "fused": best.fused,
            "float_error": best.float_check.error,
        },
        "mugraphs": [_mugraph_record(candidate, device_for(options.target)) for candidate in candidates],
        "ranked_by": "cost model" if best.measured_us is None else "measured time",
        "notes": list(notes),
        "seconds": watch.seconds | {"total": watch.total()},
        "versions": _versions(),
        "seed": options.seed,
    }


def _mugraph_record(candidate: Candidate, device: Device) -> dict[str, Any]:
    """One µGraph of the result, in their order; `candidates/RANK.json` and `.py` have the rest."""
    return {
        "kernels": len(predict(candidate.graph, device)),
        "fused": candidate.fused,
        "grid": [list(block.grid) for block in blocks_of(candidate.graph)],
        "loop": [block.loop for block in blocks_of(candidate.graph)],
        "verdict": str(candidate.verdict.verdict),
        "proved": candidate.proved,
        "compiled": candidate.compile.ok,
        "predicted_us": candidate.predicted_us,
        "measured_us": candidate.measured_us,
    }


def _versions() -> dict[str, str]:
    own = {"python": platform.python_version(), "mirage-eg": __version__}
    return own | {package: metadata.version(package) for package in ("egglog", "numpy", "triton")}
