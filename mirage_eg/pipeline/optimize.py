"""The whole way: a program in, ranked verified compiled µGraphs out. Each stage is a function that can be called alone."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.evaluator.cpu_threads import background_task
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.frontend.custom_op_check import check_custom_ops
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.custom_ops import REGISTRY
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import Measurement, tuning_record
from mirage_eg.optimizer.passes import optimization_record, optimize_mugraph
from mirage_eg.optimizer.tune import Tuned, Tuning
from mirage_eg.pipeline.compile_stage import Compiler, check_cache
from mirage_eg.pipeline.diagnosis import Found, explain
from mirage_eg.pipeline.memory_record import memory_record
from mirage_eg.pipeline.partition_stage import Cuts, Cutter, compiling, cuts_report, parts_of_ways
from mirage_eg.pipeline.ranking import notes_on, ordered
from mirage_eg.pipeline.report_json import make_report, why_nothing
from mirage_eg.pipeline.run.cache import now, reported
from mirage_eg.pipeline.run.checkpoint import Checkpoint
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.lookup import asked, for_this_machine, found, uses_gpu
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.records import Candidate, CompileRecord, Result
from mirage_eg.pipeline.run.work import Work
from mirage_eg.pipeline.search_stage import diverse, instantiate, search_structures, unlike_first, verify_structures
from mirage_eg.pipeline.stage_records import Plan, Ranked, Watch
from mirage_eg.pipeline.trace import trace_cuts, trace_plans
from mirage_eg.pipeline.tune_stage import time_candidates, tune_ranked
from mirage_eg.pipeline.verify_stage import FullSize, Verified, at_full_size
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.partition.segments import counts
from mirage_eg.search.partition.shortest_path import Piece, Way
from mirage_eg.search.trace import Tracer
from mirage_eg.transforms.renamed_views import Renamed, as_given, rename_views
from mirage_eg.transforms.simplify import simplification_record, simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.subgraph_check import Subgraph
from mirage_eg.verify.verdict import Observer


def optimize(
    name: str,
    program: Graph,
    options: Options,
    observer: Observer | None = None,
    tuning: Tuning | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    tracer: Tracer | None = None,
    looked_up: bool = False,
) -> Result:
    """Superoptimize `program`.

    Always gives at least one candidate: the program itself with one library kernel per op. `tuning` says how to tune where
    there is a GPU. What is found on the way is kept in the file `checkpoint`; with `resume` the run goes on with what is there.
    `tracer` hears where every candidate ended.

    A result that the cache on disk has is given back at once, and a finished one goes there; not so with a `tuning` of one's
    own or with custom ops, which the cache does not identify. The report says `cache`: hit, miss or off. `looked_up`: the
    caller has asked the cache in vain.
    """
    options, on_gpu = for_this_machine(options)  # refuses before any work
    watch = Watch(observer or (lambda stage, done, total, text: None))
    run = asked(name, program, options if tuning is None else replace(options, cache=False), on_gpu)
    if not (looked_up or resume) and tracer is None and (known := found(name, program, run)) is not None:
        return known
    rulebook = load_rules(options.domain, options.rules, options.without)
    check_cache()
    with ExitStack() as stack:
        kept = None
        if checkpoint is not None:
            kept = stack.enter_context(closing(Checkpoint(checkpoint, run.identity, resume)))
        work = Work(stack.enter_context(Workers(options.executor, options.jobs)), kept)
        full_size = stack.enter_context(at_full_size(program, rulebook, options, watch, work))
        result = _optimize(name, program, options, rulebook, watch, tuning or Tuning(), work, full_size, tracer)
    if run.cache is None:
        return reported(result, name, "off")
    computed = now()
    if options.budget is None or result.report["search"]["complete"]:  # what the clock cut may be better next time
        run.cache.keep(run.key, result, computed)
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
    device = options.device_record
    notes: list[str] = []
    if REGISTRY:
        with watch.stage("custom ops"):
            notes += check_custom_ops()
    with watch.stage("simplify"):
        cleaned = simplify(expand(program))
    with watch.stage("search"):
        primitive = drop_shifts(cleaned.after)
        if primitive != cleaned.after:
            notes.append("exponentials shifted by their maximum are searched unshifted: no output depends on the shift")
        named = _named(primitive, options)
        axes, found = search_structures(named.program, rulebook, options, watch, work, notes, tracer)
    with watch.stage("structures"):
        plans: list[Plan] = [*found.structures, *found.split_reductions]
        structures, small_rejected = verify_structures(plans, named.program, axes, options, watch, work, notes)
    with watch.stage("instantiate"):
        most = None if on_gpu else options.top
        made = instantiate(structures, named.program, axes, device, options, watch, work, notes, most)
        made = [replace(entry, ranked=tuple(_joined(one, named, device) for one in entry.ranked)) for entry in made]
        ranked = [entry.ranked for entry in made if entry.ranked]
    with watch.stage("kernels"):
        cutter = Cutter(primitive, rulebook, options, device, watch, work, on_gpu, tracer is not None)
        cuts = cutter.cut()
    library = Ranked(program, predict_us(program, device), proved=True, fused=False)
    tuned: dict[Graph, Tuned] = {}
    measurements: list[Measurement] = []
    pool = _pool(ranked, cuts)
    chosen = _chosen(pool, library, options)
    if on_gpu:
        with watch.stage("tune"):
            pool_of_gpu = [(library,), *unlike_first(pool)]
            tuned = tune_ranked(program, pool_of_gpu, options, tuning, measurements, watch, work)
            fastest = [entry for entries in pool_of_gpu for entry in entries if entry.graph in tuned]
            chosen = _unlike(sorted(fastest, key=lambda entry: tuned[entry.graph].us), options) or chosen
            tuned = {
                optimize_mugraph(entry.graph, device).graph: tuned[entry.graph] for entry in chosen if entry.graph in tuned
            }
    compiler = Compiler(program, device.target, watch, work, tuned)
    final = _finalists(chosen, library, cuts, device, watch)
    with background_task(lambda: compiler.compile([entry.graph for entry in final.shown])) as compiled:
        verified = _verify(full_size, final, primitive, watch, work)
        compiled()  # as a rule all of it does compile
    if not on_gpu and (others := compiling(cuts, cutter, compiler, device, watch)) is not cuts:
        cuts, pool = others, _pool(ranked, others)
        chosen = _chosen(pool, library, options)
        final = _finalists(chosen, library, cuts, device, watch)
        verified = _verify(full_size, final, primitive, watch, work)
    if cuts.partition.left_out:
        notes.append(f"there are too many ways to cut the program; not searched: {', '.join(cuts.partition.left_out)}")
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
    candidates = ordered(candidates, options)
    not_kept = []  # times of fused µGraphs, where --top left them no place
    if not any(entry.fused for entry in final.shown):
        not_kept = [entry.predicted_us for entries in pool for entry in entries if entry.fused]
    notes += notes_on(candidates, options, not_kept)
    if tracer is not None:
        known_as = [final.before.get(id(entry), entry) for entry, *_ in verified.kept]
        trace_cuts(tracer, primitive, cuts)
        trace_plans(tracer, plans, structures, made, chosen, known_as, candidates)
    explanation = None
    if not not_kept and not any(candidate.fused and candidate.compile.ok for candidate in candidates):
        errors = [candidate.compile.error or "" for candidate in candidates if candidate.fused]
        with watch.stage("explain"):
            missed = Found(named.program, axes, found, plans, structures, made, verified.rejected, errors)
            explanation = explain(missed, rulebook, options, device)
    report = make_report(name, options, rulebook, device_name, found, candidates, watch, notes)
    ways = [way_of[id(candidate)] for candidate in candidates if id(candidate) in way_of]
    report["cuts"] = cuts_report(primitive, cuts, ways, checks)
    per_op = predict(expand(program), device)
    report["per_op"] = {"kernels": len(per_op), "predicted_us": sum(cost.us for cost in per_op)}
    best = candidates[0].graph  # where it is the library's, nothing was decided
    decided = {with_warps(optimize_mugraph(entry.graph, device).graph, 1): entry.graph for entry in chosen}
    report["simplification"] = simplification_record(cleaned)
    report["optimizer"] = optimization_record(optimize_mugraph(decided.get(with_warps(best, 1), best), device))
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


def _named(primitive: Graph, options: Options) -> Renamed:
    """The program under axis names; as it is where it has none, or no block graph holds it: the search then says why."""
    try:
        if sum(map(counts, primitive.nodes)) - uncounted_ops(primitive) > options.max_block_ops:
            return as_given(primitive)
        return rename_views(primitive)
    except UnsupportedError:
        return as_given(primitive)


def _joined(entry: Ranked, named: Renamed, device: Device) -> Ranked:
    """A µGraph of the renamed program as one of the program."""
    if not named.is_renamed:
        return entry
    graph = named.joined(entry.graph)
    return replace(entry, graph=graph, predicted_us=predict_us(graph, device))


def _pool(ranked: Sequence[Sequence[Ranked]], cuts: Cuts) -> list[Sequence[Ranked]]:
    """The µGraphs of structures, and of ways to cut that are none of them."""
    known = {entry.graph for entries in ranked for entry in entries}
    return [*ranked, *(tuple(entry for _, entry in ways) for ways in cuts.ways if ways[0][1].graph not in known)]


def _chosen(pool: Sequence[Sequence[Ranked]], library: Ranked, options: Options) -> list[Ranked]:
    """What is verified beside the library form, which takes no place of theirs."""
    others = [[entry for entry in entries if entry.graph != library.graph] for entries in pool]
    return _unlike(diverse(others, options.top), options)


def _unlike(ranked: Sequence[Ranked], options: Options) -> list[Ranked]:
    """The first of them, each once: several may be one µGraph when they are polished."""
    found: dict[Graph, Ranked] = {}
    for entry in ranked:
        found.setdefault(optimize_mugraph(entry.graph, options.device_record).graph, entry)
    return [*found.values()][: options.top]


@dataclass(frozen=True, slots=True)
class _Finalists:
    """What is verified and compiled: µGraphs as lowered; by the identity of each what it was made from, and its way."""

    shown: list[Ranked]
    before: dict[int, Ranked]
    ways: dict[int, Way]
    parts: dict[Piece, Subgraph]  # the searched kernels of the ways


def _finalists(chosen: Sequence[Ranked], library: Ranked, cuts: Cuts, device: Device, watch: Watch) -> _Finalists:
    with watch.stage("optimize"):
        lowered = [replace(entry, graph=optimize_mugraph(entry.graph, device).graph) for entry in chosen]
    way_from = {entry.graph: way for ways in cuts.ways for way, entry in ways}
    pairs = [*zip(lowered, chosen, strict=True)]
    ways = {id(entry): way_from[given.graph] for entry, given in pairs if given.graph in way_from}
    shown = lowered if any(entry.graph == library.graph for entry in chosen) else [*lowered, library]
    return _Finalists(shown, {id(entry): given for entry, given in pairs}, ways, parts_of_ways([*ways.values()], device))


def _verify(full_size: FullSize, final: _Finalists, primitive: Graph, watch: Watch, work: Work) -> Verified:
    with watch.stage("verify"):
        return full_size.verify(final.shown, primitive, [*final.parts.values()], work)


__all__ = ["Candidate", "CompileRecord", "Observer", "Result", "optimize"]
