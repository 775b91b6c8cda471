"""The solver of integer programs, SCIP in OR-tools, and an order of classes that excludes cycles among the chosen ones."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mirage_eg.graph_optimizer.eclasses import components


def new_integer_program() -> Any:
    """An integer program without variables; Ctrl-C while it is solved is this process's, by default SCIP would swallow it."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("SCIP")
    solver.SetSolverSpecificParametersAsString("misc/catchctrlc = FALSE\n")
    return solver


def exclude_cycles(solver: Any, edges: Mapping[int, Sequence[int]], choices: Sequence[tuple[int, Iterable[int], Any]]) -> None:
    """In each strongly connected component a choice (class, children, variable) that is taken comes after its children."""
    for component in components(edges):
        size = len(component)
        if size == 1 and component[0] not in edges[component[0]]:
            continue
        place = {class_: solver.NumVar(0, size, "") for class_ in component}
        for own, children, variable in choices:
            for child in children if own in place else ():
                if child in place:
                    solver.Add(place[own] >= place[child] + 1 - (size + 1) * (1 - variable))
