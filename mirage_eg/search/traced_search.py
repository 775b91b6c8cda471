"""The search of splits one by one, with a tracer that hears of every candidate; what it says of structures."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from mirage_eg.egraph.expression import Expression, Split
from mirage_eg.egraph.oracle import Build, Limits, Oracle, oracle_builder
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.search.search import SearchLimits, SearchResult, search
from mirage_eg.search.structure import SplitReduction, Structure
from mirage_eg.search.trace import Tracer, class_names


def search_heard(
    program: Graph, axes: Axes, rulebook: Rulebook, limits: SearchLimits, split: Split, build: Build, tracer: Tracer | None
) -> SearchResult:
    """The search of one split, heard by `tracer`."""
    oracles: list[Oracle] = []

    def build_and_keep(target: Expression) -> Oracle:
        oracles[:] = [build(target)]
        return oracles[0]

    hear = tracer.of_search(split.show(axes), partial(_names_in, oracles, program)) if tracer else None
    return search(program, axes, rulebook, limits, on_candidate=hear, choices=(split,), build=build_and_keep)


def search_all_heard(
    program: Graph,
    axes: Axes,
    rulebook: Rulebook,
    limits: SearchLimits,
    saturation: Limits,
    choices: Sequence[Split],
    tracer: Tracer,
) -> SearchResult:
    """What `search` of all these splits gives."""
    with oracle_builder(rulebook, saturation) as build:
        results = [search_heard(program, axes, rulebook, limits, split, build, tracer) for split in choices]
    structures = (plan for result in results for plan in result.structures)
    chains = (plan for result in results for plan in result.split_reductions)
    return SearchResult(
        tuple(sorted(structures, key=lambda plan: plan.ops)),
        tuple(sorted(chains, key=lambda plan: plan.ops)),
        tuple(record for result in results for record in result.records),
        sum(result.seconds for result in results),
    )


def plan_line(plan: Structure | SplitReduction) -> dict[str, Any]:
    """What a trace says of a structure, or of two that make one µGraph."""
    kernels = (plan.first, plan.last) if isinstance(plan, SplitReduction) else (plan,)
    return {"kernels": [_structure_lines(kernel) for kernel in kernels], "proved": plan.proved}


def _structure_lines(structure: Structure) -> list[str]:
    """One line a load and step, numbered in order."""
    loads = [f"load {load.input}{' looped' if load.looped else ''}" for load in structure.loads]
    steps = [" ".join([step.op, *(f"%{i}" for i in step.operands), *map(str, step.constants)]) for step in structure.steps]
    return [f"%{number} {line}" for number, line in enumerate([*loads, *steps])]


def _names_in(oracles: Sequence[Oracle], program: Graph) -> dict[int, str]:
    return class_names(oracles[-1], program.input_names)
