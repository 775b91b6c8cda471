"""Ctrl-C while an integer program is solved."""

import subprocess
import sys

_SOLVES = """
import os
import random
import signal
from threading import Timer
from mirage_eg.graph_optimizer.integer_program import new_integer_program

def stop(*_):
    print("heard", flush=True)
    os._exit(3)

signal.signal(signal.SIGINT, stop)
random.seed(1)
program = new_integer_program()
chosen = [program.BoolVar(str(i)) for i in range(60)]
for _ in range(40):
    weights = [random.randint(5, 60) for _ in chosen]
    program.Add(sum(weight * it for weight, it in zip(weights, chosen)) <= sum(weights) // 3)
program.Maximize(sum(random.randint(5, 60) * it for it in chosen))
program.SetTimeLimit(2000)
Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
program.Solve()
"""


def test_ctrl_c_is_heard_by_the_process_that_solves_an_integer_program() -> None:
    done = subprocess.run([sys.executable, "-c", _SOLVES], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "heard\n")
