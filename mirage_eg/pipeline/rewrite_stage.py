"""The stage that rewrites a program with weights by graph substitutions, and searches the rewritten program as the given one.

Its µGraphs compete with those of the program as written, as µGraphs of the program: the parts of weights alone come first and
are prepared once. They are verified against the program as it was given. The rewritten program is searched only if its lower
bound is below the best µGraph that was found as written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.graph_optimizer.joint_extraction import CLOSE, JointExtraction
from mirage_eg.graph_optimizer.substitution import Substitution, Substitutions, substitutions
from mirage_eg.ir.deadline import Deadline
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_kernel
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.compile_stage import optimized
from mirage_eg.pipeline.equal_search import EqualSearch, of_given, search_equal
from mirage_eg.pipeline.partition_stage import Partitioner, PlanChoices, PlanSearch
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.report_sections import BeforeAfter, RewriteSummary
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.search_stage import candidate_of
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
            choices |= others.choices
        us = _best_us(searched)
        seconds = perf_counter() - begin - sum(it.seconds for it in summaries)
        summaries.append(_summary(run, found, extraction, bound_us, as_written_us, None if us == inf else us, seconds))
        groups += searched
        if not searched or until.passed():
            break
        best_us = min(best_us, us)
    return RewrittenSearch(tuple(groups), tuple(summaries), choices)


def _cheapest(run: Run, equal: Substitutions, until: Deadline) -> Substitution | None:
    """The cheapest program by prices that are known, and by those of kernels that are searched for it."""
    with run.watch.stage("rewrite"):

        def is_time_left() -> bool:
            it = equal.extraction
            text = f"{counted(it.looked_up, 'kernel')} of rewritten programs searched"
            run.watch.observer("rewrite", it.looked_up, HEURISTICS.rewritten_kernels, text)
            return not until.passed()

        seconds = min(HEURISTICS.rewrite_seconds, run.options.budget or inf)
        return equal.cheapest(seconds, HEURISTICS.rewritten_kernels, is_time_left)


def _best_us(groups: Sequence[Sequence[Candidate]]) -> float:
    return min((entry.predicted_us for entries in groups for entry in entries), default=inf)


def _library(run: Run, program: Graph) -> Candidate:
    return Candidate(program, predict_us(program, run.device), fused=False, proved_by_search=False)


def _search(
    run: Run, found: Substitution, known: Mapping[Graph, Found]
) -> tuple[tuple[tuple[Candidate, ...], ...], EqualSearch]:
    """The candidates of the rewritten program, as candidates of the given one, the extracted kernels among them; its search."""
    graph = found.rewritten.graph
    searched = search_equal(run, "rewritten", graph, found.whole, known)
    groups = [*searched.candidates, (of_given(_library(run, graph), found.whole),)]
    if found.joint.plan is not None:
        candidate = candidate_of(run, graph, found.joint.plan)
        groups.append((of_given(candidate if run.on_gpu else optimized(candidate, run.device), found.whole),))
    return tuple(groups), searched


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
