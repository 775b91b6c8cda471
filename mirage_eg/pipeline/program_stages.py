"""The stages from a program to verified candidates: simplify, search, partition, choose or tune, verify while compiling.

A program of several regions goes through them region by region (`region_stage`).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.cpu_threads import background_task
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.choose_candidates import choose, diverse_by_kind, pool, with_library, within_budget
from mirage_eg.pipeline.compile_stage import Compiler
from mirage_eg.pipeline.equal_search import search_split_statistics
from mirage_eg.pipeline.partition_stage import Partitioner, PlanSearch, parts_to_check
from mirage_eg.pipeline.rewrite_stage import RewrittenSearch, search_rewritten
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.report_sections import RewriteSummary
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.search_stage import WholeProgram, search_whole_program
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.tune_stage import StartedTuning, start_tuning, tune_candidates
from mirage_eg.pipeline.verify_stage import Finalists, FullSize, Verified
from mirage_eg.search.partition.kernel_plan import KnownSegment
from mirage_eg.search.partition.segments import Segmenter
from mirage_eg.transforms.simplify import Simplification, simplify
from mirage_eg.transforms.softmax_shift import drop_shifts


@dataclass(frozen=True, slots=True)
class SearchedProgram:
    """A program through all stages before the ranking: simplified, in primitive ops, searched whole, and its finalists.

    `rewriting`: what graph substitutions did, of each region.
    """

    simplified: Simplification
    primitive: Graph
    whole: WholeProgram
    finalists: Finalists
    rewriting: tuple[RewriteSummary, ...] = ()


def search_program(run: Run, full_size: FullSize, tuning: Tuning, known: Sequence[KnownSegment] = ()) -> SearchedProgram:
    """Simplify, search, partition, choose or tune, verify while compiling.

    With segments `known` from a search at other sizes nothing is searched: their structures get new tiles.
    """
    with run.watch.stage("simplify"):
        simplified = simplify(expand(run.program))
    with run.watch.stage("search"):
        primitive = drop_shifts(simplified.after)
        if primitive != simplified.after:
            note = "exponentials shifted by their maximum are searched unshifted: no output depends on the shift"
            run.watch.notes.append(note)
    with ExitStack() as context:
        started = start_tuning(run, tuning, context)
        if known:
            whole = WholeProgram(Segmenter(primitive).whole(), primitive, "its structures were found at other sizes")
        else:
            whole = search_whole_program(run, primitive)
        partitioner = Partitioner(run, primitive, whole, known=known)
        finalists, rewriting = _finalists(run, primitive, whole, partitioner, full_size, started)
    return SearchedProgram(simplified, primitive, whole, finalists, rewriting)


def _finalists(
    run: Run, primitive: Graph, whole: WholeProgram, partitioner: Partitioner, full_size: FullSize, started: StartedTuning
) -> tuple[Finalists, tuple[RewriteSummary, ...]]:
    """The candidates chosen or tuned, verified and compiled; the plans of all kernels compile."""
    library = Candidate(run.program, predict_us(run.program, run.device), fused=False, proved_by_search=True)
    compiler = Compiler(run)
    plans = partitioner.plans()
    written = pool(whole.candidates, plans.candidates)
    others = RewrittenSearch() if partitioner.is_known else _equal_programs(run, primitive, written, partitioner, plans)
    candidates = [*written, *others.candidates]
    measurements: tuple[Measurement, ...] = ()
    chosen: Sequence[Candidate] = ()
    if run.on_gpu:
        groups = [[library], *diverse_by_kind(candidates)]
        tuned = tune_candidates(run, groups, {**plans.choices, **others.choices}, started)
        measurements = tuned.measurements
        chosen = tuned.applied(run.options, run.device)
    if not any(entry.fused for entry in chosen) and not any(measurement.grid for measurement in measurements):
        if run.on_gpu and candidates:
            run.watch.notes.append(
                "the seconds of tuning ended before a fused kernel was timed: those of lowest predicted time"
            )
        chosen = choose(candidates, library, run, run.options.top)
    chosen = with_library(chosen, library)
    verified = _verified(run, chosen, primitive, full_size, compiler)
    if not run.on_gpu and (compiled := partitioner.compiling(plans, compiler)) is not plans:
        plans, candidates = compiled, [*pool(whole.candidates, compiled.candidates), *others.candidates]
        chosen = with_library(choose(candidates, library, run, run.options.top), library)
        verified = _verified(run, chosen, primitive, full_size, compiler)
    if not run.on_gpu and not _is_any_good(verified):
        known = {entry.graph for entry in chosen}
        spares = [it for it in choose(candidates, library, run, run.options.top + HEURISTICS.spares) if it.graph not in known]
        if spares:
            run.watch.notes.append("no fused candidate of those to keep passes the float check: the next ones were verified")
        while spares and not _is_any_good(verified):
            chosen = [*chosen, spares.pop(0)]
            verified = verified.joined(_verified(run, chosen[-1:], primitive, full_size, compiler))
    if plans.partition.left_out:
        left_out = ", ".join(plans.partition.left_out)
        run.watch.notes.append(f"there are too many partitions of the program; not searched: {left_out}")
    if isinstance(whole.axes, Axes) and not candidates:
        run.watch.notes.append(_no_kernel_note(whole))
    verified = replace(verified, equal=tuple(compiler.compile(verified.equal)))
    return Finalists(candidates, plans, tuple(chosen), verified, measurements), others.summaries


def _equal_programs(
    run: Run, primitive: Graph, written: Sequence[Sequence[Candidate]], partitioner: Partitioner, plans: PlanSearch
) -> RewrittenSearch:
    """What the searches of equal programs found: of those by graph substitutions, and of that with split statistics."""
    rewriting = search_rewritten(run, primitive, written, partitioner, plans)
    split = search_split_statistics(run, primitive, written, partitioner.found)
    if split is None:
        return rewriting
    candidates, choices = (*rewriting.candidates, *split.candidates), {**rewriting.choices, **split.choices}
    return replace(rewriting, candidates=candidates, choices=choices)


def _verified(run: Run, chosen: Sequence[Candidate], primitive: Graph, full_size: FullSize, compiler: Compiler) -> Verified:
    """The candidates verified while they compile; with a budget as many as fit, and at least two."""
    verified = Verified()
    for batch in within_budget(compiler.seconds_left, chosen):
        with background_task(partial(compiler.compile, batch)) as compiled:
            verified = verified.joined(full_size.verify(batch, primitive, parts_to_check(batch, run.device)))
            compiled()  # as a rule all of it does compile
    if left_out := len(chosen) - len(verified.equal) - len(verified.rejected):
        run.watch.notes.append(f"{left_out} of {len(chosen)} candidates were not verified: the budget was spent")
    return verified


def _is_any_good(verified: Verified) -> bool:
    """Whether a fused candidate is equal and passes the float check."""
    return any(entry.fused and entry.float_check.ok for entry in verified.equal)


def _no_kernel_note(whole: WholeProgram) -> str:
    """One sentence: the reason for the lack of a fused kernel."""
    if not whole.search.all:
        return (
            "no fused kernel was found: no block graph within the limit of ops is equal to the program by the loaded laws; "
            "raise --max-block-ops or add a law"
        )
    if whole.failing() == len(whole.structures):
        return "no fused kernel was found: every structure failed the field check"
    return (
        f"no fused kernel was found: of {counted(len(whole.structures), 'structure')} all tiles are larger than a block can "
        "hold or none of their µGraphs passes the filters"
    )
