"""The whole way: a program in, ranked verified compiled µGraphs out. Each stage is a function that can be called alone."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_eg.backends.threads import beside
from mirage_eg.backends.warps import with_warps
from mirage_eg.cache import cache_at_hand, key_of, now, reported
from mirage_eg.checkpoint import Checkpoint
from mirage_eg.cleanup import clean_up, cleanup_record
from mirage_eg.compiling import Compiler
from mirage_eg.cost import predict, predict_us
from mirage_eg.cuts import Cuts, Cutter, compiling, cuts_report, parts_of_ways
from mirage_eg.devices import Device, device_for
from mirage_eg.executors import Workers
from mirage_eg.full_size import FullSize, Verified, at_full_size
from mirage_eg.gpu_stages import time_candidates, tune_ranked, uses_gpu
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.memory import memory_record
from mirage_eg.nearest_miss import Found, explain
from mirage_eg.new_op import registered
from mirage_eg.options import Options
from mirage_eg.partition import Piece, Way, few_kernels
from mirage_eg.polish import polish, polish_record
from mirage_eg.probe import Part
from mirage_eg.report import identity, make_report, why_nothing
from mirage_eg.results import Candidate, CompileRecord, Observer, Plan, Ranked, Result, Watch
from mirage_eg.rulebook import Rulebook, load_rules
from mirage_eg.shifts import drop_shifts
from mirage_eg.stages import diverse, instantiate, search_structures, unlike_first, verify_structures
from mirage_eg.trace import Tracer
from mirage_eg.trace_plans import trace_cuts, trace_plans
from mirage_eg.tune import Record, Tuned, Tuning, tuning_record
from mirage_eg.work import Work


def optimize(
    name: str,
    program: Graph,
    options: Options,
    observer: Observer | None = None,
    tuning: Tuning | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    tracer: Tracer | None = None,
) -> Result:
    """Superoptimize `program`.

    Always gives at least one candidate: the program itself with one library kernel per op. `tuning` says how to tune where
    there is a GPU. What is found on the way is kept in the file `checkpoint`; with `resume` the run goes on with what is there.
    `tracer` hears where every candidate ended.

    A result that the cache on disk has is given back at once, and a finished one goes there; not so with a `tuning` of one's
    own or with ops from outside, of which the cache knows nothing. The report says `cache`: hit, miss or off.
    """
    on_gpu = uses_gpu(options)  # refuses before any work
    watch = Watch(observer or (lambda stage, done, total, text: None))
    rulebook = load_rules(options.domain, options.rules, options.without)
    run = identity(name, program, options, rulebook)
    cache = cache_at_hand() if options.cache and tuning is None and not registered() else None
    key = {} if cache is None else key_of(run, on_gpu=on_gpu, budget=options.budget)
    if cache is not None and not resume and tracer is None and (found := cache.find(key)) is not None:
        return reported(found.result, name, "hit", found.computed)
    with ExitStack() as stack:
        kept = None
        if checkpoint is not None:
            kept = stack.enter_context(closing(Checkpoint(checkpoint, run, resume)))
        workers = (
            Workers(None, 1) if registered() else Workers(options.executor, options.jobs)
        )  # workers know no ops from outside
        work = Work(stack.enter_context(workers), kept)
        full_size = stack.enter_context(at_full_size(program, rulebook, options, watch, work))
        result = _optimize(name, program, options, rulebook, watch, tuning or Tuning(), work, full_size, tracer)
    if cache is None:
        return reported(result, name, "off")
    computed = now()
    if options.budget is None or result.report["search"]["complete"]:  # what the clock cut may be better next time
        cache.keep(key, result, computed)
    return reported(result, name, "miss", computed)


def _optimize(
    name: str,
    program: Graph,
    options: Options,
    rulebook: Rulebook,
    watch: Watch,
    tuning: Tuning,
    work: Work,
    full_size: FullSize,
    tracer: Tracer | None,
) -> Result:
    on_gpu = uses_gpu(options)
    device = device_for(options.target)
    notes: list[str] = []
    with watch.stage("cleanup"):
        cleaned = clean_up(expand(program))
    with watch.stage("search"):
        primitive = drop_shifts(cleaned.after)
        if primitive != cleaned.after:
            notes.append("exponentials shifted by their maximum are searched unshifted: no output depends on the shift")
        axes, found = search_structures(primitive, rulebook, options, watch, work, notes, tracer)
    with watch.stage("structures"):
        plans: list[Plan] = [*found.structures, *found.chains]
        structures, small_rejected = verify_structures(plans, primitive, axes, options, watch, work)
    with watch.stage("instantiate"):
        made = instantiate(structures, primitive, axes, device, options, watch, work, None if on_gpu else options.top)
        ranked = [entry.ranked for entry in made if entry.ranked]
    with watch.stage("kernels"):
        cutter = Cutter(primitive, rulebook, options, device, watch, work, on_gpu, tracer is not None)
        cuts = cutter.cut()
    library = Ranked(program, predict_us(program, device), proved=True, fused=False)
    tuned: dict[Graph, Tuned] = {}
    measurements: list[Record] = []
    pool = _pool(ranked, cuts)
    chosen = _unlike(diverse(pool, options.top), options)
    if on_gpu:
        with watch.stage("tune"):
            pool_of_gpu = [(library,), *unlike_first(pool)]
            tuned = tune_ranked(program, pool_of_gpu, options, tuning, measurements, watch, work)
            fastest = [entry for entries in pool_of_gpu for entry in entries if entry.graph in tuned]
            chosen = _unlike(sorted(fastest, key=lambda entry: tuned[entry.graph].us), options) or chosen
            tuned = {polish(entry.graph, options.target).graph: tuned[entry.graph] for entry in chosen if entry.graph in tuned}
    compiler = Compiler(program, options.target, watch, work, tuned)
    final = _finalists(chosen, library, cuts, options.target, watch)
    with beside(lambda: compiler.compile([entry.graph for entry in final.shown])) as compiled:
        verified = _verify(full_size, final, primitive, watch, work)
        compiled()  # as a rule all of it does compile
    if not on_gpu and (others := compiling(cuts, cutter, compiler, options.target, watch)) is not cuts:
        cuts, pool = others, _pool(ranked, others)
        chosen = _unlike(diverse(pool, options.top), options)
        final = _finalists(chosen, library, cuts, options.target, watch)
        verified = _verify(full_size, final, primitive, watch, work)
    if isinstance(axes, Axes) and not pool:
        notes.append(why_nothing(found, structures))
    checks = dict(zip(final.parts, verified.parts, strict=True))
    candidates = compiler.candidates(verified)
    device_name = "cpu"
    if on_gpu:
        with watch.stage("time"):
            candidates, device_name = time_candidates(candidates, watch)
    way_of = {
        id(candidate): final.ways[id(entry)]
        for candidate, (entry, _, _) in zip(candidates, verified.kept, strict=True)
        if id(entry) in final.ways
    }
    candidates = _ordered(candidates, device, options, notes)
    if not candidates[0].float_check.ok:
        notes.append("the first equals the program in exact numbers, but not as its types round them: see `float_check`")
    if tracer is not None:
        known_as = [final.before.get(id(entry), entry) for entry, *_ in verified.kept]
        trace_cuts(tracer, primitive, cuts)
        trace_plans(tracer, plans, structures, made, chosen, known_as, candidates)
    explanation = None
    if not any(candidate.fused and candidate.compile.ok for candidate in candidates):
        errors = [candidate.compile.error or "" for candidate in candidates if candidate.fused]
        with watch.stage("explain"):
            missed = Found(primitive, axes, found, plans, structures, made, verified.rejected, errors)
            explanation = explain(missed, rulebook, options, device)
    report = make_report(name, options, rulebook, device_name, found, candidates, watch, notes)
    ways = [way_of[id(candidate)] for candidate in candidates if id(candidate) in way_of]
    report["cuts"] = cuts_report(primitive, cuts, ways, checks)
    per_op = predict(expand(program), device)
    report["per_op"] = {"kernels": len(per_op), "predicted_us": sum(cost.us for cost in per_op)}
    best = candidates[0].graph  # where it is the library's, nothing was decided
    decided = {with_warps(polish(entry.graph, options.target).graph, 1): entry.graph for entry in chosen}
    report["cleanup"] = cleanup_record(cleaned)
    report["optimizer"] = polish_record(polish(decided.get(with_warps(best, 1), best), options.target))
    report["memory"] = memory_record(candidates[0].graph, program)
    if measurements:
        report["tuning"] = tuning_record(measurements)
    report["explanation"] = explanation
    report["search"]["candidates"] = len(final.shown)
    report["search"]["instances"] = sum(entry.count for entry in made)
    report["verify"]["accepted"] = len(verified.kept)
    report["verify"]["rejected"] = len(verified.rejected)
    report["verify"]["structures_accepted"] = len(structures)
    report["verify"]["structures_rejected"] = small_rejected
    return Result(tuple(candidates), report, tuple(measurements))


def _pool(ranked: Sequence[Sequence[Ranked]], cuts: Cuts) -> list[Sequence[Ranked]]:
    """The µGraphs of structures, and of ways to cut that are none of them."""
    known = {entry.graph for entries in ranked for entry in entries}
    return [*ranked, *(tuple(entry for _, entry in ways) for ways in cuts.ways if ways[0][1].graph not in known)]


def _unlike(ranked: Sequence[Ranked], options: Options) -> list[Ranked]:
    """The first of them, each once: several may be one µGraph when they are polished."""
    found: dict[Graph, Ranked] = {}
    for entry in ranked:
        found.setdefault(polish(entry.graph, options.target).graph, entry)
    return [*found.values()][: options.top]


@dataclass(frozen=True, slots=True)
class _Finalists:
    """What is verified and compiled: µGraphs as lowered; by the identity of each what it was made from, and its way."""

    shown: list[Ranked]
    before: dict[int, Ranked]
    ways: dict[int, Way]
    parts: dict[Piece, Part]  # the searched kernels of the ways


def _finalists(chosen: Sequence[Ranked], library: Ranked, cuts: Cuts, target: str, watch: Watch) -> _Finalists:
    with watch.stage("optimize"):
        lowered = [replace(entry, graph=polish(entry.graph, target).graph) for entry in chosen]
    way_from = {entry.graph: way for ways in cuts.ways for way, entry in ways}
    pairs = [*zip(lowered, chosen, strict=True)]
    ways = {id(entry): way_from[given.graph] for entry, given in pairs if given.graph in way_from}
    shown = lowered if any(entry.graph == library.graph for entry in chosen) else [*lowered, library]
    return _Finalists(shown, {id(entry): given for entry, given in pairs}, ways, parts_of_ways([*ways.values()], target))


def _verify(full_size: FullSize, final: _Finalists, primitive: Graph, watch: Watch, work: Work) -> Verified:
    with watch.stage("verify"):
        return full_size.verify(final.shown, primitive, [*final.parts.values()], work)


CLOSE = 1.05  # the cost model does not tell times that are closer
WORTH = 1.5  # times the fastest that a µGraph of few kernels may be predicted to take and still stand first


def _ordered(candidates: Sequence[Candidate], device: Device, options: Options, notes: list[str]) -> list[Candidate]:
    """The fastest first. Where the cost model alone says so, one of few kernels, and of those that it tells apart only
    just, that of the fewest. It knows not what a launch costs outside a CUDA graph, and of library kernels only what they
    take at least: the program as it is written stands behind what was found."""
    ordered = sorted(candidates, key=_rank)
    if ordered[0].measured_us is not None:
        return ordered
    sound = [candidate for candidate in ordered if candidate.compile.ok and candidate.float_check.ok]
    found = [candidate for candidate in sound if candidate.fused]
    kernels = {id(candidate): len(predict(candidate.graph, device)) for candidate in found or sound}
    few = few_kernels(min(kernels.values(), default=0), options.max_kernels)
    simple = [candidate for candidate in ordered if kernels.get(id(candidate), few + 1) <= few]
    if simple and (options.max_kernels or simple[0].predicted_us <= WORTH * ordered[0].predicted_us):
        close = [candidate for candidate in simple if candidate.predicted_us <= CLOSE * simple[0].predicted_us]
        first = min(close, key=lambda candidate: kernels[id(candidate)])
        if first.predicted_us > CLOSE * ordered[0].predicted_us:
            faster = f"{len(predict(ordered[0].graph, device))} kernels in {ordered[0].predicted_us:.1f} µs"
            notes.append(
                f"the first has {kernels[id(first)]} kernels and a predicted {first.predicted_us:.1f} µs; the cost model has "
                f"{faster} too: --max-kernels lets them stand first, a GPU would tell"
            )
        ordered.remove(first)
        ordered.insert(0, first)
    for candidate in sound:
        if not candidate.fused and candidate.predicted_us < ordered[0].predicted_us:
            notes.append(
                f"{len(predict(candidate.graph, device))} library kernels, the program as it is written, take at least "
                f"{candidate.predicted_us:.1f} µs by the cost model: a GPU would tell"
            )
    return ordered


def _rank(candidate: Candidate) -> tuple[bool, bool, bool, float]:
    guessed = candidate.measured_us is None
    us = candidate.predicted_us if candidate.measured_us is None else candidate.measured_us
    return not candidate.compile.ok, not candidate.float_check.ok, guessed and not candidate.fused, us


__all__ = ["Candidate", "CompileRecord", "Observer", "Result", "optimize"]
