"""The search of another program that computes the given one: its µGraphs compete with those of the program as written.

They are verified against the program as it was given. At other sizes they serve with the tiles that they have, if at all: only
plans of the program as written get new ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.choose_candidates import pool
from mirage_eg.pipeline.compile_stage import Compiler
from mirage_eg.pipeline.partition_stage import Partitioner, PlanChoices
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.search_stage import search_whole_program
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.segment_search import Found
from mirage_eg.search.partition.shortest_path import Partition
from mirage_eg.transforms.split_statistics import with_split_statistics

ToGiven = Callable[[Graph], Graph]  # a µGraph of the other program becomes one of the given program


@dataclass(frozen=True, slots=True)
class EqualSearch:
    """The µGraphs of another program as those of the given one, in groups, and the partition that they are from.

    `choices`: other kernels for the parts of a plan, by its µGraph.
    """

    candidates: tuple[tuple[Candidate, ...], ...]
    partition: Partition
    choices: Mapping[Graph, PlanChoices]


def search_equal(run: Run, what: str, program: Graph, to_given: ToGiven, known: Mapping[Graph, Found]) -> EqualSearch:
    """Search a program of primitive ops that computes the program of a run. `known`: segments that were searched."""
    work = replace(run.work, part=f"{run.work.part}{what} ")
    with run.watch.part(what) as watch:
        inner = replace(run, name=f"{run.name}, {what}", program=program, work=work, tracer=None, watch=watch)
        whole = search_whole_program(inner, program)
        partitioner = Partitioner(inner, program, whole, known)
        plans = partitioner.plans()
        if not run.on_gpu and run.options.budget is None:  # else kernels that do not compile are dropped in the end
            plans = partitioner.compiling(plans, Compiler(inner))
    return EqualSearch(
        tuple(tuple(of_given(entry, to_given) for entry in entries) for entries in pool(whole.candidates, plans.candidates)),
        plans.partition,
        {to_given(graph): _choices_of_given(choices, to_given) for graph, choices in plans.choices.items()},
    )


def of_given(candidate: Candidate, to_given: ToGiven) -> Candidate:
    """A candidate of another program as one of the given program, of which the search has proved nothing."""
    graph, optimized = to_given(candidate.graph), candidate.optimized
    return replace(
        candidate,
        graph=graph,
        proved_by_search=False,
        plan=None,
        found=None if candidate.found is None else to_given(candidate.found),
        optimized=None if optimized is None else replace(optimized, graph=graph),
    )


def _choices_of_given(choices: PlanChoices, to_given: ToGiven) -> PlanChoices:
    return replace(choices, compose=lambda plan: of_given(choices.compose(plan), to_given))


def search_split_statistics(
    run: Run, primitive: Graph, as_written: Sequence[Sequence[Candidate]], known: Mapping[Graph, Found]
) -> EqualSearch | None:
    """The search with mean and variance of long rows by parts; None where the program has no such rows."""
    split = with_split_statistics(primitive, HEURISTICS.search.longest_row)
    if split is None:
        return None
    searched = search_equal(run, "split statistics", split, lambda graph: graph, known)
    best, before = (
        min((it.predicted_us for entries in groups for it in entries), default=inf)
        for groups in (searched.candidates, as_written)
    )
    run.watch.notes.append(f"mean and variance of long rows by parts: {best:.1f} µs predicted, {before:.1f} as written")
    return searched


__all__ = ["EqualSearch", "of_given", "search_equal", "search_split_statistics"]
