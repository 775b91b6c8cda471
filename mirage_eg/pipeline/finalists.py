"""The stage that chooses the candidates of a searched program, or tunes them, and verifies them while they compile."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import perf_counter

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.cpu_threads import OverdueError, background_task, ending
from mirage_eg.backends.launches.launch_graph import generates_kernels
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.deadline import NEVER
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.serialize import to_json
from mirage_eg.optimizer.measurement import Measurement, fingerprint
from mirage_eg.pipeline.choose_candidates import (
    Groups,
    choose,
    diverse_by_kind,
    large_checks_last,
    one_by_one,
    with_library,
    within_budget,
)
from mirage_eg.pipeline.compile_stage import EQUAL_TO_ITSELF, NO_ERROR, UNWRITTEN, Compiled, Compiler, candidate_of
from mirage_eg.pipeline.equal_programs import EqualPrograms
from mirage_eg.pipeline.found import Found, Lowered
from mirage_eg.pipeline.partition_stage import Partitioner
from mirage_eg.pipeline.program_search import ProgramSearch
from mirage_eg.pipeline.ranking import behind, exceeds, on_which_the_first_depends, ordered
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import Behind, Candidate
from mirage_eg.pipeline.search_stage import OneKernelSearch
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.tune_stage import StartedTuning, tune_candidates
from mirage_eg.pipeline.verify_stage import Verified, verify
from mirage_eg.verify.block_reference import BlockReference


@dataclass(frozen=True, slots=True)
class Finalists:
    """The candidates chosen of a search, the library form among them, with what verification and tuning gave.

    `pool`: all candidates that were found, in groups. `tuning_seconds`: those that tuning took.
    """

    search: ProgramSearch
    pool: Groups
    candidates: tuple[Lowered, ...]
    verified: Verified
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()
    tuning_seconds: float = 0.0
    behind: Behind | None = None


def find_finalists(
    run: Run, search: ProgramSearch, partitioner: Partitioner | None, equal: EqualPrograms, started: StartedTuning
) -> Finalists:
    """Choose or tune, verify and compile the µGraphs of a search and of equal programs; the plans of a partitioner compile."""
    library = _library(run)
    reference = BlockReference(run.program, run.options.trials, run.options.seed)
    most = run.options.top
    candidates = [*search.candidates, *equal.candidates]
    if (lost := _behind(run, library, candidates)) is not None:
        form = Lowered(library, library.graph)
        return Finalists(search, candidates, (form,), Verified((Compiler(run).library(form),)), (), behind=lost)
    notes: list[str] = []
    measurements: tuple[Measurement, ...] = ()
    tuned: Sequence[Lowered] = ()
    chosen: Sequence[Lowered] = ()
    seconds = 0.0
    if run.on_gpu:
        groups = _untuned_first(run, library, diverse_by_kind(candidates))
        begun = perf_counter()
        tuned, measurements = tune_candidates(run, groups, {**search.plans.choices, **equal.choices}, started)
        chosen = tuned[:most]
        seconds = perf_counter() - begun
        if started.own_seconds:
            run = replace(run, until=run.until.later(seconds))
    compiler = Compiler(run)
    if not any(entry.fused for entry in chosen) and not any(it.grid and it.outcome.tried for it in measurements):
        if run.on_gpu and candidates:
            notes.append("the seconds of tuning ended before a fused kernel was timed: those of lowest predicted time")
        chosen = choose(candidates, library, run, most)
    chosen = with_library(chosen, library)
    verified = _verified(run, chosen, search.primitive, reference, compiler)
    most_us = _most_us_of_a_first(run, verified)
    compiled = search.plans
    if not run.on_gpu and partitioner is not None:
        others = frozenset(entry.graph for entry in chosen).difference(it.graph for it in verified.equal if it.compile.tried)
        compiled = partitioner.compiling(search.plans, compiler, most_us, others)
    if compiled is not search.plans:
        search = replace(search, plans=compiled)
        candidates = [*search.candidates, *equal.candidates]
        chosen = with_library(choose(candidates, library, run, most), library)
        verified = _verified(run, chosen, search.primitive, reference, compiler)
    notes += verified.notes
    is_left = not run.on_gpu or _were_refused(run, chosen, verified)
    if is_left and _may_be_beaten(verified, [it.predicted_us for entries in candidates for it in entries]):
        known = {*(entry.graph for entry in chosen), *(entry.mugraph for entry in measurements)}
        spares = [it for it in choose(candidates, library, run, most + HEURISTICS.spares) if known.isdisjoint(_names(it))]
        spares = [*tuned[most:], *sorted(spares, key=lambda it: it.found.predicted_us)]
        if spares:
            notes.append("no fused candidate of those to keep passes the float check: the next ones were verified")
        while not run.until.passed() and _may_be_beaten(verified, [it.found.predicted_us for it in spares]):
            chosen = [*chosen, spares.pop(0)]
            verified = verified.joined(_verified(run, chosen[-1:], search.primitive, reference, compiler))
    if not any(entry.graph == run.program for entry in verified.equal):
        verified = verified.joined(Verified((compiler.library(Lowered(library, library.graph)),)))
    reference.forget()
    if left_out := search.plans.partition.left_out:
        notes.append(f"there are too many partitions of the program; not searched: {', '.join(left_out)}")
    if isinstance(search.one_kernel.axes, Axes) and not candidates:
        notes.append(_no_kernel_note(search.one_kernel))
    return Finalists(search, candidates, tuple(chosen), verified, measurements, tuple(notes), seconds)


def _untuned_first(run: Run, library: Found, groups: Groups) -> Groups:
    """The library form and the groups; the µGraph that would be first without tuning leads its group, which leads all."""
    chosen = with_library(choose(groups, library, run, run.options.top), library)
    [first] = _lowered(chosen, ordered(_likely(chosen), run.options)[:1])

    def is_other(entry: Found) -> bool:
        return entry is not first.found

    each_led = [sorted(entries, key=is_other) for entries in ([library], *groups)]
    return sorted(each_led, key=lambda entries: is_other(entries[0]))


def _library(run: Run) -> Found:
    generated = run.given is not None or generates_kernels(run.program)
    return Found(run.program, predict_us(run.program, run.device), generated, proved_by_search=True)


def _behind(run: Run, library: Found, candidates: Groups) -> Behind | None:
    """The predicted time of the best µGraph where only those are wanted that may win, and it may not."""
    if not run.wanted.winning or run.is_part or run.on_gpu:
        return None
    found = [library, *(entry for entries in candidates for entry in entries)]
    best_us = min((entry.predicted_us for entry in found if entry.fused), default=inf)
    return behind(best_us, run.program, run.device)


def _verified(run: Run, chosen: Sequence[Lowered], primitive: Graph, reference: BlockReference, compiler: Compiler) -> Verified:
    """The candidates verified while they compile; with a budget as many as fit, the large checks last.

    Without a GPU those compile that may be the first, by prediction at once, others when it turns out that they may. A check
    has half of the time that is left, as long as fused ones wait for theirs.
    """
    verified, left = Verified(), {it.graph for it in chosen if it.fused and it.graph != run.program}
    with suppress(OverdueError):
        for batch in _batches(run, chosen, reference):
            some = batch if run.on_gpu else _lowered(batch, _that_may_be_first(run, _likely(batch)))
            left.difference_update(it.graph for it in batch)
            until, work = run.until.halfway() if left else run.until, partial(compiler.compile_some, batch, some)
            with suppress(OverdueError), ending(until), background_task(work) as compiled:
                verified = verified.joined(verify(run, reference, batch, primitive, compiled))
            if not run.wanted.others and _has_the_first(run, verified, chosen):
                return verified  # the others are slower
    while waiting := _that_may_be_first(run, verified.equal):
        made = dict(zip((it.graph for it in waiting), compiler.compile(_lowered(chosen, waiting)), strict=True))
        verified = replace(verified, equal=tuple(_with_program(it, made.get(it.graph)) for it in verified.equal))
    done = {it.graph for it in verified.equal} | {it.graph for it, _ in verified.rejected}
    if left_out := sum(it.fused and it.graph not in done for it in chosen):  # others need no check where the first is wanted
        note = f"{left_out} of {len(chosen)} candidates were not verified: the budget was spent"
        verified = replace(verified, notes=(note,))
    return verified


def _batches(run: Run, chosen: Sequence[Lowered], reference: BlockReference) -> Iterator[Sequence[Lowered]]:
    """The candidates that are verified together, the first batch first; one by one where the first is wanted."""
    if run.until != NEVER and not (run.wanted.others or run.on_gpu or run.is_part):
        in_order = _lowered(chosen, ordered(_likely(chosen), run.options))
        yield from one_by_one(run.until, in_order, run.program, reference.size_of_check)
        return
    with ending(run.until):  # sizes of checks are found by evaluating parts
        in_turn = large_checks_last(run.until, chosen, reference.size_of_check)
    if run.on_gpu and not run.wanted.others:
        yield from ([it] for it in in_turn)
    else:
        yield from within_budget(run.until, in_turn)


def _has_the_first(run: Run, verified: Verified, chosen: Sequence[Lowered]) -> bool:
    """Whether a fused candidate is good and compiles, and is as fast as those not verified; tuned ones come in their order."""
    compiled = [it.us for it in _good(verified) if it.compile.ok]
    if run.on_gpu or run.is_part or not compiled:
        return run.on_gpu and bool(compiled)
    done = {it.graph for it in verified.equal} | {it.graph for it, _ in verified.rejected}
    left = (it.found.predicted_us for it in chosen if it.fused and it.graph not in done)
    return min(compiled) <= HEURISTICS.close * min(left, default=inf)


def _that_may_be_first(run: Run, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, not compiled so far, that may be the first of all or of the fused ones, if they compile; of a part also
    of those with as many kernels."""
    groups = [candidates, [it for it in candidates if it.fused]]
    if run.is_part:
        groups += [[it for it in candidates if it.kernels == count] for count in {it.kernels for it in candidates}]
    found = [it for group in groups for it in on_which_the_first_depends(group, run.options) if not it.compile.tried]
    return [*{it.graph: it for it in found}.values()]


def _likely(chosen: Sequence[Lowered]) -> list[Candidate]:
    """The µGraphs as candidates that are equal and compile."""
    return [candidate_of(entry, UNWRITTEN, EQUAL_TO_ITSELF, NO_ERROR) for entry in chosen]


def _lowered(chosen: Sequence[Lowered], candidates: Sequence[Candidate]) -> list[Lowered]:
    """The µGraphs that became these candidates, in the order of the candidates."""
    by_graph = {entry.graph: entry for entry in chosen}
    return [by_graph[it.graph] for it in candidates]


def _with_program(candidate: Candidate, made: Compiled | None) -> Candidate:
    if made is None:
        return candidate
    return replace(candidate, source=made.source, schedule=made.schedule, compile=made.record)


def _most_us_of_a_first(run: Run, verified: Verified) -> float:
    """The most microseconds of a fused µGraph that may come before the candidates, if it compiles."""
    first = next(iter(ordered([it for it in verified.equal if it.fused], run.options)), None)
    if first is None or not (first.compile.ok and first.float_check.ok) or exceeds(first, run.options):
        return inf
    return inf if run.is_part or run.options.prefer_few_kernels else HEURISTICS.close * first.us


def _good(verified: Verified) -> list[Candidate]:
    """The fused candidates that are equal and pass the float check."""
    return [entry for entry in verified.equal if entry.fused and entry.float_check.ok]


def _were_refused(run: Run, chosen: Sequence[Lowered], verified: Verified) -> bool:
    """Whether the tuner took candidates for right, and none of them passes the checks."""
    tuned = {it.graph for it in chosen if it.tuned is not None and it.graph != run.program}
    return bool(tuned) and tuned.isdisjoint(it.graph for it in _good(verified))


def _names(entry: Lowered) -> tuple[Graph, str]:
    """A µGraph, and its name among the measurements."""
    return entry.graph, fingerprint(to_json(entry.graph))


def _may_be_beaten(verified: Verified, others: Sequence[float]) -> bool:
    """Whether one of the others is predicted to be faster than all that are good, as the library form may be alone."""
    least = min((it.us for it in _good(verified)), default=inf)
    return HEURISTICS.close * min(others, default=inf) < least


def _no_kernel_note(search: OneKernelSearch) -> str:
    """One sentence: the reason for the lack of a fused kernel."""
    if not search.search.all:
        return (
            "no fused kernel was found: no block graph within the limit of ops is equal to the program by the loaded laws; "
            "raise --max-block-ops or add a law"
        )
    if all(entry.ended is not None for entry in search.structures):
        return "no fused kernel was found: every structure failed the field check, or overflows"
    return (
        f"no fused kernel was found: of {counted(len(search.structures), 'structure')} all tiles are larger than a block can "
        "hold or none of their µGraphs passes the filters"
    )
