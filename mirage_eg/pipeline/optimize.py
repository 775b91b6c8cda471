"""The pipeline: a program in, ranked, verified and compiled µGraphs out. Each stage is a function of the run."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.cpu_threads import background_task
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.custom_op_check import check_custom_ops
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.custom_ops import REGISTRY
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.choose import choose, deduplicated, diverse_by_kind, pool, with_library, with_plans
from mirage_eg.pipeline.compile_stage import Compiler, check_cache
from mirage_eg.pipeline.diagnosis import Outcome, diagnose
from mirage_eg.pipeline.partition_stage import Partitioner, parts_to_check
from mirage_eg.pipeline.ranking import notes_on, ordered
from mirage_eg.pipeline.report import make_report, why_nothing
from mirage_eg.pipeline.run.cache import now, reported
from mirage_eg.pipeline.run.checkpoint import Checkpoint
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.lookup import asked, for_this_machine, found
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.records import Candidate, CompileRecord, Result, finished
from mirage_eg.pipeline.run.work import Work
from mirage_eg.pipeline.search_stage import WholeProgram, search_whole_program
from mirage_eg.pipeline.stage_records import Run, Watch
from mirage_eg.pipeline.trace import trace_plans, trace_structures
from mirage_eg.pipeline.tune_stage import time_candidates, tune_candidates
from mirage_eg.pipeline.verify_stage import Finalists, FullSize, Verified, at_full_size
from mirage_eg.search.trace import Tracer
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
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
) -> Result:
    """Superoptimize `program`.

    Always gives at least one candidate: the program itself with one library kernel per op. `tuning` says how to tune where
    there is a GPU. Finished results are written to the file `checkpoint`; with `resume` the run continues from there.
    `tracer` receives every candidate of the search with the stage at which it ended.

    A result in the cache on disk is given back at once, and a finished one is written there; not so with a `tuning` of one's
    own or with custom ops, which the cache does not identify. The report says `cache`: hit, miss or off.
    """
    options, on_gpu = for_this_machine(options)  # refuses before any work
    watch = Watch(observer)
    request = asked(name, program, options if tuning is None else replace(options, cache=False), on_gpu)
    if not resume and tracer is None and (earlier := found(name, program, request)) is not None:
        return earlier
    rulebook = load_rules(options.domain, options.rules, options.without)
    check_cache()
    with ExitStack() as stack:
        file = None
        if checkpoint is not None:
            file = stack.enter_context(closing(Checkpoint(checkpoint, request.identity, resume)))
        work = Work(stack.enter_context(Workers(options.executor, options.jobs)), file)
        run = Run(name, program, options, rulebook, options.device_record, work, on_gpu, watch, tracer)
        result = _optimize(run, stack.enter_context(at_full_size(run)), tuning or Tuning())
    if request.cache is None:
        return reported(result, name, "off")
    computed = now()
    if options.budget is None or result.report.search.complete:  # what the clock cut may be better next time
        request.cache.keep(request.key, result, computed)
    return reported(result, name, "miss", computed)


def _optimize(run: Run, full_size: FullSize, tuning: Tuning) -> Result:
    """Simplify, search, partition, choose or tune, verify while compiling, time, rank, report."""
    if REGISTRY:
        with run.watch.stage("custom ops"):
            run.watch.notes += check_custom_ops()
    with run.watch.stage("simplify"):
        simplified = simplify(expand(run.program))
    with run.watch.stage("search"):
        primitive = drop_shifts(simplified.after)
        if primitive != simplified.after:
            note = "exponentials shifted by their maximum are searched unshifted: no output depends on the shift"
            run.watch.notes.append(note)
    whole = search_whole_program(run, primitive)
    partitioner = Partitioner(run, primitive)
    finalists = _finalists(run, primitive, whole, partitioner, full_size, tuning)
    candidates = list(finalists.verified.equal)
    if run.on_gpu:
        with run.watch.stage("time"):
            candidates = time_candidates(candidates, run.watch)
    candidates = ordered(candidates, run.options)
    not_verified = []  # times of fused µGraphs, where --top left none of them
    if not any(entry.fused for entry in finalists.candidates):
        not_verified = [entry.predicted_us for entries in finalists.pool for entry in entries if entry.fused]
    run.watch.notes += notes_on(candidates, run.options, not_verified)
    if run.tracer is not None:
        trace_plans(run.tracer, primitive, finalists.plans)
        trace_structures(run.tracer, whole, finalists.candidates, finalists.verified, candidates)
    explanation = None
    if not not_verified and not any(candidate.fused and candidate.compile.ok for candidate in candidates):
        with run.watch.stage("explain"):
            explanation = diagnose(_outcome(whole, finalists.verified, candidates), run.rulebook, run.options, run.device)
    report = make_report(run, simplified, primitive, whole, finalists, candidates, explanation)
    return Result(tuple(map(finished, candidates)), report, finalists.measurements)


def _outcome(whole: WholeProgram, verified: Verified, candidates: Sequence[Candidate]) -> Outcome:
    rejected = [candidate.verdict for candidate in verified.rejected]
    errors = [candidate.compile.error or "" for candidate in candidates if candidate.fused]
    return Outcome(whole.named.program, whole.axes, whole.search, whole.equal, whole.instances, rejected, errors)


def _finalists(
    run: Run, primitive: Graph, whole: WholeProgram, partitioner: Partitioner, full_size: FullSize, tuning: Tuning
) -> Finalists:
    """The candidates chosen or tuned, verified and compiled; the plans of all kernels compile."""
    library = Candidate(run.program, predict_us(run.program, run.device), fused=False, proved_by_search=True)
    compiler = Compiler(run)
    plans = partitioner.plans()
    candidates = pool(whole.candidates, plans)
    measurements: tuple[Measurement, ...] = ()
    chosen = choose(candidates, library, run)
    if run.on_gpu:
        groups = [with_plans([library], plans), *diverse_by_kind(candidates)]
        with run.watch.stage("tune"):
            tuned = tune_candidates(run, groups, tuning)
        measurements = tuned.measurements
        chosen = deduplicated(tuned.fastest(groups), run.options, lambda entry: tuned.apply(entry, run.device)) or chosen
    chosen = with_library(chosen, library)
    with background_task(lambda: compiler.compile(chosen)) as compiled:
        verified = full_size.verify(chosen, primitive, parts_to_check(chosen, run.device))
        compiled()  # as a rule all of it does compile
    if not run.on_gpu and (others := partitioner.compiling(plans, compiler)) is not plans:
        plans, candidates = others, pool(whole.candidates, others)
        chosen = with_library(choose(candidates, library, run), library)
        verified = full_size.verify(chosen, primitive, parts_to_check(chosen, run.device))
    if plans.partition.left_out:
        left_out = ", ".join(plans.partition.left_out)
        run.watch.notes.append(f"there are too many partitions of the program; not searched: {left_out}")
    if isinstance(whole.axes, Axes) and not candidates:
        run.watch.notes.append(why_nothing(whole))
    verified = replace(verified, equal=tuple(compiler.compile(verified.equal)))
    return Finalists(candidates, plans, tuple(chosen), verified, measurements)


__all__ = ["Candidate", "CompileRecord", "Observer", "Result", "optimize"]
