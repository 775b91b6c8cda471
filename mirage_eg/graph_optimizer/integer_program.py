"""The solver of integer programs, SCIP in OR-tools."""

from typing import Any


def new_integer_program() -> Any:
    """An integer program without variables; Ctrl-C while it is solved is this process's, by default SCIP would swallow it."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("SCIP")
    solver.SetSolverSpecificParametersAsString("misc/catchctrlc = FALSE\n")
    return solver
