"""The stage that rewrites a program with weights by graph substitutions, and searches the rewritten program as the given one.

Its µGraphs compete with those of the program as written, as µGraphs of the program: the parts of weights alone come first and
are prepared once. They are verified against the program as it was given. The rewritten program is searched only if its lower
bound is below the best µGraph that was found as written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter, time

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.graph_optimizer.joint_extraction import CLOSE, JointExtraction
from mirage_eg.graph_optimizer.substitution import Substitution, Substitutions, substitutions
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_kernel
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.choose_candidates import pool
from mirage_eg.pipeline.compile_stage import Compiler, optimized
from mirage_eg.pipeline.partition_stage import Partitioner, PlanChoices, PlanSearch
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.report_sections import BeforeAfter, RewriteSummary
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.search_stage import candidate_of, search_whole_program
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.segment_search import Found


@dataclass(frozen=True, slots=True)
class RewrittenSearch:
    """The µGraphs of the rewritten program as those of the given one, in groups, and a record of each that was extracted.

    `choices`: other kernels for the parts of a plan, by its µGraph.
    """

    candidates: tuple[tuple[Candidate, ...], ...] = ()
    summaries: tuple[RewriteSummary, ...] = ()
    choices: Mapping[Graph, PlanChoices] = field(default_factory=dict)


def search_rewritten(
    run: Run, primitive: Graph, as_written: Sequence[Sequence[Candidate]], partitioner: Partitioner, plans: PlanSearch
) -> RewrittenSearch:
    """Rewrite the program of a run, and search what may be faster than these candidates and the library form.

    `plans`: the partition of the program as written by `partitioner`. Its segments have prices, and so have those of each
    rewritten program that is searched; this repeats until no other program is the cheapest.
    """
    begin, until = perf_counter(), run.options.until()
    with run.watch.stage("rewrite"):
        equal = substitutions(run.program, primitive, run.device, partitioner.find)
    if equal is None:
        return RewrittenSearch()
    extraction = equal.extraction
    extraction.add(primitive, extraction.terms_of_given(), plans.partition.searched)
    groups: list[tuple[Candidate, ...]] = []
    summaries: list[RewriteSummary] = []
    best_us = as_written_us = _best_us([*as_written, (_library(run, run.program),)])
    choices: dict[Graph, PlanChoices] = {}
    seen: list[Graph] = []
    while len(seen) < HEURISTICS.rewritten_programs:
        found = _cheapest(run, equal, until)
        if found is None or found.rewritten.graph in seen:
            break
        seen.append(found.rewritten.graph)
        bound_us = found.lower_bound_us(run.device)
        searched: tuple[tuple[Candidate, ...], ...] = ()
        if bound_us * HEURISTICS.close < best_us:
            searched, others = _search(run, found, partitioner.found)
            extraction.add(found.rewritten.graph, found.rewritten.terms, others.partition.searched)
            choices |= {found.whole(graph): _choices_of_given(found, entry) for graph, entry in others.choices.items()}
        us = _best_us(searched)
        seconds = perf_counter() - begin - sum(it.seconds for it in summaries)
        summaries.append(_summary(run, found, extraction, bound_us, as_written_us, None if us == inf else us, seconds))
        groups += searched
        if not searched or time() >= until:
            break
        best_us = min(best_us, us)
    return RewrittenSearch(tuple(groups), tuple(summaries), choices)


def _cheapest(run: Run, equal: Substitutions, until: float) -> Substitution | None:
    """The cheapest program by prices that are known, and by those of kernels that are searched for it."""
    with run.watch.stage("rewrite"):

        def is_time_left() -> bool:
            it = equal.extraction
            text = f"{counted(it.looked_up, 'kernel')} of rewritten programs searched"
            run.watch.observer("rewrite", it.looked_up, HEURISTICS.rewritten_kernels, text)
            return time() < until

        seconds = min(HEURISTICS.rewrite_seconds, run.options.budget or inf)
        return equal.cheapest(seconds, HEURISTICS.rewritten_kernels, is_time_left)


def _best_us(groups: Sequence[Sequence[Candidate]]) -> float:
    return min((entry.predicted_us for entries in groups for entry in entries), default=inf)


def _library(run: Run, program: Graph) -> Candidate:
    return Candidate(program, predict_us(program, run.device), fused=False, proved_by_search=False)


def _search(
    run: Run, found: Substitution, known: Mapping[Graph, Found]
) -> tuple[tuple[tuple[Candidate, ...], ...], PlanSearch]:
    """The candidates of the rewritten program, as candidates of the given one, the extracted kernels among them; its plans."""
    graph = found.rewritten.graph
    work = replace(run.work, part=f"{run.work.part}rewritten ")
    inner = replace(run, name=f"{run.name}, rewritten", program=graph, work=work, tracer=None)
    notes = len(run.watch.notes)
    whole = search_whole_program(inner, graph)
    partitioner = Partitioner(inner, graph, whole, known)
    plans = partitioner.plans()
    if not run.on_gpu and run.options.budget is None:  # else kernels that do not compile are dropped in the end
        plans = partitioner.compiling(plans, Compiler(inner))
    run.watch.notes[notes:] = [f"rewritten: {note}" for note in run.watch.notes[notes:]]
    extracted = found.joint.plan
    groups = [*pool(whole.candidates, plans.candidates), (_library(run, graph),)]
    if extracted is not None:
        candidate = candidate_of(inner, graph, extracted)
        groups.append((candidate if run.on_gpu else optimized(candidate, run.device),))
    return tuple(tuple(_of_given(found, entry) for entry in entries) for entries in groups), plans


def _choices_of_given(found: Substitution, choices: PlanChoices) -> PlanChoices:
    return replace(choices, compose=lambda plan: _of_given(found, choices.compose(plan)))


def _of_given(found: Substitution, candidate: Candidate) -> Candidate:
    """A candidate of the rewritten program as one of the given program, of which the search has proved nothing."""
    graph, optimized = found.whole(candidate.graph), candidate.optimized
    return replace(
        candidate,
        graph=graph,
        proved_by_search=False,
        plan=None,
        found=None if candidate.found is None else found.whole(candidate.found),
        optimized=None if optimized is None else replace(optimized, graph=graph),
    )


def _summary(
    run: Run,
    found: Substitution,
    extraction: JointExtraction,
    bound_us: float,
    as_written_us: float,
    best_us: float | None,
    seconds: float,
) -> RewriteSummary:
    it, joint = found.rewritten, found.joint
    prologue = it.prologue
    return RewriteSummary(
        laws=dict(found.laws),
        enodes=found.enodes,
        optimal=joint.us <= CLOSE * joint.bound_us,
        extracted_us=joint.us,
        extracted_bound_us=joint.bound_us,
        rounds=extraction.rounds,
        kernels_searched=extraction.looked_up,
        ops=BeforeAfter(_ops(extraction.program), _ops(it.graph)),
        folded=it.folded,
        prologue_bytes=0 if prologue is None else sum(kind.nbytes for kind in prologue.output_types),
        prologue_us=0.0 if prologue is None else predict_us(prologue, run.device),
        lower_bound_us=bound_us,
        as_written_us=as_written_us,
        rewritten_us=best_us,
        seconds=seconds,
    )


def _ops(program: Graph) -> int:
    return sum(map(is_kernel, program.nodes))


__all__ = ["RewrittenSearch", "search_rewritten"]
