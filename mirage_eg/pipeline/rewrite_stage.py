"""The stage that rewrites a program with weights by graph substitutions, and searches the rewritten program as the given one.

Its µGraphs compete with those of the program as written, as µGraphs of the program: the parts of weights alone come first and
are prepared once. They are verified against the program as it was given. The rewritten program is searched only if its lower
bound is below the best µGraph that was found as written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.graph_optimizer.substitution import Substitution, substitution
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_kernel
from mirage_eg.pipeline.choose_candidates import pool
from mirage_eg.pipeline.compile_stage import Compiler
from mirage_eg.pipeline.partition_stage import Partitioner
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.report_sections import BeforeAfter, RewriteSummary
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.search_stage import search_whole_program
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.segment_search import Found
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts


@dataclass(frozen=True, slots=True)
class RewrittenSearch:
    """The µGraphs of the rewritten program as those of the given one, in groups, and the record; None if nothing changes."""

    candidates: tuple[tuple[Candidate, ...], ...] = ()
    summary: RewriteSummary | None = None


def search_rewritten(run: Run, as_written: Sequence[Sequence[Candidate]], known: Mapping[Graph, Found]) -> RewrittenSearch:
    """Rewrite the program of a run, and search what may be faster than these candidates and the library form.

    `known`: what was found for segments of the program as written; the rewritten one has many of them.
    """
    begin = perf_counter()
    with run.watch.stage("rewrite"):
        found = substitution(run.program, run.device, min(HEURISTICS.rewrite_seconds, run.options.budget or inf))
    if found is None:
        return RewrittenSearch()
    library_us = predict_us(run.program, run.device)
    best_us = min([library_us, *(entry.predicted_us for entries in as_written for entry in entries)])
    bound_us = found.lower_bound_us(run.device)
    groups: tuple[tuple[Candidate, ...], ...] = ()
    if bound_us * HEURISTICS.close < best_us:
        groups = _search(run, found, known)
    least = min((entry.predicted_us for entries in groups for entry in entries), default=inf)
    summary = _summary(run, found, bound_us, best_us, None if least == inf else least, perf_counter() - begin)
    return RewrittenSearch(groups, summary)


def _search(run: Run, found: Substitution, known: Mapping[Graph, Found]) -> tuple[tuple[Candidate, ...], ...]:
    """The candidates of the rewritten program, as candidates of the given one; its library form is one of them."""
    graph = found.rewritten.graph
    work = replace(run.work, part=f"{run.work.part}rewritten ")
    inner = replace(run, name=f"{run.name}, rewritten", program=graph, work=work, tracer=None)
    notes = len(run.watch.notes)
    primitive = drop_shifts(simplify(expand(graph)).after)
    whole = search_whole_program(inner, primitive)
    partitioner = Partitioner(inner, primitive, whole, known)
    plans = partitioner.plans()
    if not run.on_gpu and run.options.budget is None:  # else kernels that do not compile are dropped in the end
        plans = partitioner.compiling(plans, Compiler(inner))
    run.watch.notes[notes:] = [f"rewritten: {note}" for note in run.watch.notes[notes:]]
    library = Candidate(graph, predict_us(graph, run.device), fused=False, proved_by_search=False)
    return tuple(
        tuple(_of_given(found, entry) for entry in entries)
        for entries in (*pool(whole.candidates, plans.candidates), (library,))
    )


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
    run: Run, found: Substitution, bound_us: float, as_written_us: float, best_us: float | None, seconds: float
) -> RewriteSummary:
    it = found.rewritten
    prologue = it.prologue
    return RewriteSummary(
        laws=dict(found.laws),
        enodes=found.enodes,
        optimal=found.proved,
        ops=BeforeAfter(_ops(run.program), _ops(it.graph)),
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
