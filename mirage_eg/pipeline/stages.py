"""The stages of a run in their order: a program in, ranked, verified and compiled µGraphs out.

    laws          the loaded laws, without those that tests refute
    custom ops    the user's ops, held against their definitions
    regions       the program is cut into one region or several, of which equal ones are one
      simplify    primitive ops, and laws of whole programs
      search      structures of the region as one kernel
      instantiate tiles for each structure
      kernels     plans of several kernels, through segments that are searched
      rewrite     equal programs, each searched likewise: by graph substitutions, and with split statistics
      tune        on a GPU: tiles and schedules by measured time
      optimize    layouts, op orders and thread graphs of those that are chosen
      verify      random fields, floats and proofs at full size
      compile     meanwhile
    verify        the µGraphs of several regions as those of the program; the proof of the first in steps
    time          on a GPU: what was not tuned
    explain       the closest candidate, where no µGraph is fused

Each stage takes the run and the records of earlier stages, and gives a record, with notes for the report.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from mirage_eg.backends.evaluator.garbage_collection import rare_collections
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.false_laws import without_false_laws
from mirage_eg.ir.deadline import Deadline, after, doubled
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.compile_stage import check_cache
from mirage_eg.pipeline.equal_programs import EqualPrograms, search_equal_programs
from mirage_eg.pipeline.finalists import find_finalists
from mirage_eg.pipeline.make_report import make_report
from mirage_eg.pipeline.partition_stage import Partitioner
from mirage_eg.pipeline.program_search import search_program
from mirage_eg.pipeline.ranking import notes_on, ordered
from mirage_eg.pipeline.region_records import Region, RegionSearch, SearchedRegion
from mirage_eg.pipeline.region_stage import divide, join
from mirage_eg.pipeline.run.cache_lookup import RunRequest
from mirage_eg.pipeline.run.checkpoint import Checkpoint
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.report_sections import Diagnosis
from mirage_eg.pipeline.run.result import EVERYTHING, Candidate, Result, Wanted
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.pipeline.stage_records import Run, Watch
from mirage_eg.pipeline.trace_stages import trace_region
from mirage_eg.pipeline.tune_stage import start_tuning, timed_and_ordered
from mirage_eg.pipeline.verify_stage import first_with_steps
from mirage_eg.search.partition.plan_records import KnownSegment
from mirage_eg.search.partition.segments import op_count
from mirage_eg.search.trace import Tracer
from mirage_eg.transforms.constants import with_constants
from mirage_eg.transforms.simplify import Simplification, as_searched, simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.verdict import Observer


def run_stages(
    request: RunRequest,
    observer: Observer | None,
    tuning: Tuning | None,
    checkpoint: Path | None = None,
    resume: bool = False,
    tracer: Tracer | None = None,
) -> Result:
    """Run all stages; finished work items are written to the file `checkpoint`, with `resume` read from it."""
    with _begun(request, observer, checkpoint, resume, tracer) as (run, notes):
        return _run(run, tuning, notes, (), ())


def run_wanted(
    request: RunRequest,
    observer: Observer | None,
    tuning: Tuning | None,
    wanted: Wanted,
    known: Sequence[KnownSegment] = (),
    ahead: Sequence[RegionSearch] = (),
) -> Result:
    """Run the stages for those parts of the report that are `wanted`.

    `known`: segments of a search for the same program at other sizes, which takes the place of the search; so does what was
    found `ahead`, for each region.
    """
    with _begun(request, observer, wanted=wanted) as (run, notes):
        return _run(run, tuning, notes, known, ahead)


def search_ahead(request: RunRequest) -> list[RegionSearch]:
    """The searches of the regions of a run, in another process than the rest of it."""
    with _begun(request) as (run, _):
        run, _ = _with_constants(run)
        regions = divide(run)
        return [
            replace(_search(replace(region.run, until=_end_of(run, region, share)))[0], parts=region.parts)
            for region, share in zip(regions, _shares(regions), strict=True)
        ]


def _end_of(run: Run, region: Region, share: float) -> Deadline:
    """The deadline of a region, by its share of what is left of the budget; the only region of a run has all."""
    return after(run.until.part(HEURISTICS.until_joined).left() * doubled(share)) if region.name else run.until


def _shares(regions: Sequence[Region]) -> list[float]:
    """For each region its share of the time that is left when it begins: by its ops and those of later regions."""
    works = [HEURISTICS.ops_of_a_search + op_count(expand(region.program)) for region in regions]
    return [work / sum(works[number:]) for number, work in enumerate(works)]


@contextmanager
def _begun(
    request: RunRequest,
    observer: Observer | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    tracer: Tracer | None = None,
    wanted: Wanted = EVERYTHING,
) -> Iterator[tuple[Run, list[str]]]:
    """A run with its laws and workers, and notes."""
    options, watch = request.options, Watch(observer)
    rulebook = load_rules(options.domain, options.rules, options.without, options.undefined_in(request.program))
    check_cache()
    with ExitStack() as stack:
        stack.enter_context(rare_collections)
        file = None
        if checkpoint is not None:
            file = stack.enter_context(closing(Checkpoint(checkpoint, request.identity, resume)))
        work = Work(stack.enter_context(Workers(options.executor, options.jobs)), file)
        device = options.device_record
        with watch.stage("laws"):
            rulebook, notes = without_false_laws(rulebook)
        run = Run(
            request.name, request.program, options, rulebook, device, work, request.on_gpu, watch, tracer, wanted, request.until
        )
        yield run, [*notes]


def _run(
    run: Run, tuning: Tuning | None, notes: list[str], known: Sequence[KnownSegment], ahead: Sequence[RegionSearch]
) -> Result:
    if REGISTRY:
        from mirage_eg.frontend.custom_op_check import check_custom_ops

        with run.watch.stage("custom ops"):
            notes += check_custom_ops(run.program)
    run, further = _with_constants(run)
    notes += further
    regions = [Region(run)] if known else divide(run, ahead)
    searched, run = _searched(run, regions, tuning, known, ahead)
    whole = join(run, searched)
    finalists = whole.finalists
    ranked = first_with_steps(run, timed_and_ordered(run, finalists.verified.equal))
    explanation = _explanation(run, whole, ranked) if run.wanted.diagnosis and not whole.inside else None
    notes += [*whole.notes, *notes_on(ranked, run.options, _not_verified_us(whole))]
    _trace(run, searched, ranked)
    report = make_report(run, whole, ranked, explanation, notes)
    cut = finalists.search.cut or run.until.passed()
    known_segments, behind = finalists.search.plans.known, finalists.behind
    return Result(tuple(ranked), report, finalists.measurements, known=known_segments, cut=cut, behind=behind)


def _with_constants(run: Run) -> tuple[Run, list[str]]:
    """The run of the program with constants for values of one number, where NaN and infinity may be lost; notes on it."""
    if run.options.not_finite_in(run.program) == "keep":
        return run, []
    given = expand(run.program)
    program = with_constants(given)
    if program is given:
        return run, []
    note = (
        f"values that are one number for all numbers are constants ({op_count(given)} ops become {op_count(program)}): NaN and "
        'infinity of the inputs do not reach them; not_finite="keep" computes them'
    )
    return replace(run, program=program, given=run.program), [note]


def search_region(
    region: Region,
    until: Deadline,
    tuning: Tuning | None = None,
    known: Sequence[KnownSegment] = (),
    ahead: RegionSearch | None = None,
) -> SearchedRegion:
    """The stages of a region; nothing is searched with segments `known` from a search at other sizes, or if it was `ahead`.

    A `tuning` that is given has seconds of its own.
    """
    run, begin, notes = replace(region.run, until=until), perf_counter(), list[str]()
    with ExitStack() as context:
        started = start_tuning(run, tuning, context)
        found, partitioner = _search(run, known) if ahead is None else (ahead, None)
        finalists = find_finalists(run, found.search, partitioner, found.equal, started)  # tune, optimize, verify, compile
    if drop_shifts(found.simplified.after) != found.simplified.after:
        notes.append("exponentials shifted by their maximum are searched unshifted: no output depends on the shift")
    notes += [*found.search.notes, *found.equal.notes, *finalists.notes]
    return SearchedRegion(region, found.simplified, finalists, found.equal.summaries, tuple(notes), perf_counter() - begin)


def _search(run: Run, known: Sequence[KnownSegment] = ()) -> tuple[RegionSearch, Partitioner]:
    simplified, primitive = _in_primitive_ops(run)
    search, partitioner = search_program(run, primitive, known=known)  # search, instantiate, kernels
    equal = EqualPrograms()
    if not known:
        equal = search_equal_programs(run, search, partitioner, drop_shifts(simplified.after))  # rewrite, and these again
    return RegionSearch(simplified, search, equal), partitioner


def _in_primitive_ops(run: Run) -> tuple[Simplification, Graph]:
    """The program of a run, simplified, and as it is searched: without shifts of exponentials."""
    with run.watch.stage("simplify"):
        simplified = simplify(expand(run.program))
    with run.watch.stage("search"):
        return simplified, as_searched(simplified.after)


def _searched(
    run: Run,
    regions: Sequence[Region],
    tuning: Tuning | None,
    known: Sequence[KnownSegment] = (),
    ahead: Sequence[RegionSearch] = (),
) -> tuple[list[SearchedRegion], Run]:
    """The regions of a program searched in turn, and the run, whose end a `tuning` with seconds of its own moves.

    Several regions share these seconds as they do the budget.
    """
    found = list[SearchedRegion]()
    for number, (region, share) in enumerate(zip(regions, _shares(regions), strict=True)):
        if region.name:
            ops = op_count(expand(region.program))
            run.watch.observer("regions", number, len(regions), f"{ops} ops, {len(region.parts)} times")
        own = tuning if tuning is None else tuning.of(share * tuning.effort.seconds)
        until = _end_of(run, region, share)
        found.append(search_region(region, until, own, known, ahead[number] if ahead else None))
        if tuning is not None:
            seconds = found[-1].finalists.tuning_seconds
            run, tuning = replace(run, until=run.until.later(seconds)), tuning.of(tuning.effort.seconds - seconds)
    return found, run


def _not_verified_us(whole: SearchedRegion) -> list[float]:
    """The predicted times of fused µGraphs, where --top left none of them."""
    finalists = whole.finalists
    if any(entry.fused for entry in finalists.candidates):
        return []
    return [entry.predicted_us for entries in finalists.pool for entry in entries if entry.fused]


def _trace(run: Run, searched: Sequence[SearchedRegion], ranked: Sequence[Candidate]) -> None:
    if run.tracer is not None:
        for entry in searched:
            own = ordered(entry.finalists.verified.equal, entry.region.run.options) if entry.region.name else ranked
            trace_region(run.tracer, entry.finalists, own)


def _explanation(run: Run, whole: SearchedRegion, ranked: Sequence[Candidate]) -> Diagnosis | None:
    """Why there is no fused µGraph that compiles; None if there is one, or if there may be one that was not verified."""
    fused = [candidate for candidate in ranked if candidate.fused]
    if _not_verified_us(whole) or any(candidate.compile.ok for candidate in fused):
        return None
    from mirage_eg.pipeline.diagnosis import FailedRun, diagnose

    search, verified = whole.finalists.search.one_kernel, whole.finalists.verified
    rejected = [verdict for _, verdict in verified.rejected]
    errors = [candidate.compile.error or "" for candidate in fused]
    failed = FailedRun(search.program, search.axes, search.search, search.structures, rejected, errors, run.until)
    with run.watch.stage("explain"):
        return diagnose(failed, run.rulebook, run.options, run.device)
