"""All stages of a run: a program in, ranked, verified and compiled µGraphs out. Each stage is a function of the run."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from math import inf
from pathlib import Path

from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.false_laws import without_false_laws
from mirage_eg.frontend.custom_op_check import check_custom_ops
from mirage_eg.graph_optimizer.region_cuts import values_to_cut_at
from mirage_eg.ir.custom_ops import REGISTRY
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.compile_stage import check_cache
from mirage_eg.pipeline.diagnosis import FailedRun, diagnose
from mirage_eg.pipeline.make_report import make_report
from mirage_eg.pipeline.program_stages import search_program
from mirage_eg.pipeline.ranking import notes_on
from mirage_eg.pipeline.region_stage import run_regions
from mirage_eg.pipeline.run.cache_lookup import RunRequest
from mirage_eg.pipeline.run.checkpoint import Checkpoint
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import Candidate, Result, finished
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.pipeline.search_stage import WholeProgram
from mirage_eg.pipeline.stage_records import Run, Watch
from mirage_eg.pipeline.trace_stages import trace_plans, trace_whole_program
from mirage_eg.pipeline.tune_stage import timed_and_ordered
from mirage_eg.pipeline.verify_stage import FullSize, Verified, first_with_steps
from mirage_eg.search.partition.kernel_plan import KnownSegment
from mirage_eg.search.partition.regions import regions
from mirage_eg.search.partition.segments import Segment, segment_program
from mirage_eg.search.trace import Tracer
from mirage_eg.verify.verdict import Observer


def run_stages(
    request: RunRequest,
    observer: Observer | None,
    tuning: Tuning | None,
    checkpoint: Path | None,
    resume: bool,
    tracer: Tracer | None,
    known: Sequence[KnownSegment] = (),
) -> Result:
    """Run all stages; finished work items are written to the file `checkpoint`, with `resume` read from it.

    `known`: segments of a search for the same program at other sizes, which takes the place of the search.
    """
    options, watch = request.options, Watch(observer)
    rulebook = load_rules(options.domain, options.rules, options.without, options.undefined_in(request.program))
    check_cache()
    with ExitStack() as stack:
        file = None
        if checkpoint is not None:
            file = stack.enter_context(closing(Checkpoint(checkpoint, request.identity, resume)))
        work = Work(stack.enter_context(Workers(options.executor, options.jobs)), file)
        device = options.device_record
        with watch.stage("laws"):
            rulebook, notes = without_false_laws(rulebook)
            watch.notes += notes
        run = Run(request.name, request.program, options, rulebook, device, work, request.on_gpu, watch, tracer)
        return _run(run, tuning or Tuning(), known)


def _run(run: Run, tuning: Tuning, known: Sequence[KnownSegment]) -> Result:
    """Search the program, or each of its regions; time, rank, report."""
    if REGISTRY:
        with run.watch.stage("custom ops"):
            run.watch.notes += check_custom_ops(run.program)
    if not known and len(segments := _regions(run)) > 1:
        return run_regions(run, segments, tuning)
    searched = search_program(run, FullSize.of(run), tuning, known)
    whole, finalists = searched.whole, searched.finalists
    candidates = first_with_steps(run, timed_and_ordered(run, finalists.verified.equal))
    not_verified = []  # times of fused µGraphs, where --top left none of them
    if not any(entry.fused for entry in finalists.candidates):
        not_verified = [entry.predicted_us for entries in finalists.pool for entry in entries if entry.fused]
    run.watch.notes += notes_on(candidates, run.options, not_verified)
    if run.tracer is not None:
        trace_plans(run.tracer, searched.primitive, finalists.plans)
        trace_whole_program(run.tracer, whole, finalists.candidates, finalists.verified, candidates)
    explanation = None
    if not not_verified and not any(candidate.fused and candidate.compile.ok for candidate in candidates):
        with run.watch.stage("explain"):
            explanation = diagnose(
                _failed_run(run, whole, finalists.verified, candidates), run.rulebook, run.options, run.device
            )
    report = make_report(run, searched, candidates, explanation)
    return Result(tuple(map(finished, candidates)), report, finalists.measurements, known=finalists.plans.known)


def _regions(run: Run) -> tuple[Segment, ...]:
    """The regions of the program, cut between kernels of the program as rewritten where other cuts take substitutions away."""
    segments = regions(run.program, HEURISTICS.region_ops)
    if len(segments) == 1:
        return segments
    with run.watch.stage("regions"):
        programs = [segment_program(run.program, segment) for segment in segments]
        seconds = min(HEURISTICS.rewrite_seconds, run.options.budget or inf)
        cut_at = values_to_cut_at(run.program, programs, run.device, seconds)
    return segments if cut_at is None else regions(run.program, HEURISTICS.region_ops, cut_at)


def _failed_run(run: Run, whole: WholeProgram, verified: Verified, candidates: Sequence[Candidate]) -> FailedRun:
    rejected = [candidate.verdict for candidate in verified.rejected]
    errors = [candidate.compile.error or "" for candidate in candidates if candidate.fused]
    return FailedRun(whole.program, whole.axes, whole.search, whole.structures, rejected, errors, run.options.until())
