"""The constraint solver leaves Ctrl-C to the process that uses it."""

import subprocess
import sys

_SOLVES = """
import os
import signal
from ortools.sat.python import cp_model
from mirage_eg.backends.triton.exact_solver import exact_solver

signal.signal(signal.SIGINT, lambda *_: print("heard"))
model = cp_model.CpModel()
model.maximize(model.new_int_var(0, 3, "x"))
solver = exact_solver(1.0)
assert solver.solve(model) == cp_model.OPTIMAL and solver.objective_value == 3
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_handler_of_ctrl_c_outlives_the_solver() -> None:
    done = subprocess.run([sys.executable, "-c", _SOLVES], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "heard\n")
