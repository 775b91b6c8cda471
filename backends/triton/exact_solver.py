"""The constraint solver of arenas and layouts, CP-SAT, with the parameters that all of its uses share."""

from typing import Any


def exact_solver(effort: float) -> Any:
    """A solver that finds the same on every machine, within an effort in deterministic time; it leaves Ctrl-C to others.

    By default CP-SAT takes the handler of SIGINT and leaves none: the next Ctrl-C would end this process alone.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    solver.parameters.catch_sigint_signal = False
    return solver
