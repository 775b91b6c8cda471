"""Custom ops travel with the work: local processes and Dask workers compute what this process computes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import mpmath
import pytest

from mirage_eg.frontend.custom_op import register_op
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.run import executors
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.options import Options
from property_tests.support.timeless import timeless

LAWS = """; domain: indexed
(constructor Log1pexp (E) E)
(rule ((= e (Log1pexp x)) (= a (axes x))) ((set (axes e) a))  :name "axes of log1pexp")
(rule ((below e) (= e (Log1pexp x))) ((below x)) :ruleset subexpression :name "below log1pexp")
"""


def program() -> Graph:
    """log1pexp(X W)."""
    graph = new_kernel_graph()
    x, w = graph.new_input((16, 64), name="X"), graph.new_input((64, 32), name="W")
    graph.mark_output(graph.op("log1pexp", graph.matmul(x, w)))
    return graph.graph()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Holds the rule file, and a file named as each process that computed a log1pexp; everything is worth a process."""
    monkeypatch.setattr(executors, "WORTH_STARTING", 0.0)
    monkeypatch.setattr(executors, "WORTH_SENDING", 0.0)
    (tmp_path / "log1pexp.egg").write_text(LAWS)
    (tmp_path / "processes").mkdir()

    def numbers(xp: Any, x: Any) -> Any:
        (tmp_path / "processes" / str(os.getpid())).touch()
        return xp.log1p(xp.exp(x))

    register_op(
        "log1pexp",
        numbers=numbers,
        exactly=lambda x: mpmath.log(1 + mpmath.exp(x)),
        triton="tl.log(1.0 + tl.exp({x}))",
        torch="torch.nn.functional.softplus({x})",
    )
    yield tmp_path
    del REGISTRY["log1pexp"]


def run(folder: Path, **options: Any) -> Result:
    chosen = Options(device="cpu", top=2, max_block_ops=6, rules=(str(folder / "log1pexp.egg"),), **options)
    return optimize("log1pexp", program(), chosen)


def summary(result: Result) -> tuple[str, list[str]]:
    return json.dumps(timeless(result.report.data())), [candidate.source for candidate in result.candidates]


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    with Workers("dask", 2) as workers:
        yield workers.open_pool()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["two jobs", "dask"])
def test_workers_search_a_custom_op_as_one_process_does(folder: Path, where: str, request: pytest.FixtureRequest) -> None:
    in_one = summary(run(folder, jobs=1))
    assert "tl.log(1.0 + tl.exp(product))" in in_one[1][0]
    assert [path.name for path in (folder / "processes").iterdir()] == [str(os.getpid())]
    options: dict[str, Any] = {"jobs": 2} if where == "two jobs" else {"executor": request.getfixturevalue("dask")}
    assert summary(run(folder, **options)) == in_one
    assert {path.name for path in (folder / "processes").iterdir()} - {str(os.getpid())}


SCRIPT = """
import sys
import mpmath
import mirage_eg as mi
from mirage_eg.pipeline.run import executors
from neighbour import log1pexp

executors.WORTH_STARTING = executors.WORTH_SENDING = 0.0

def exactly(x):
    return mpmath.log(1 + mpmath.exp(x))

if __name__ == "__main__":
    mi.register_op(
        "log1pexp", numbers=log1pexp, exactly=exactly, triton="tl.log(1.0 + tl.exp({x}))", torch="torch.log1p(torch.exp({x}))"
    )
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16, 64)), graph.new_input((64, 32))
    graph.mark_output(graph.op("log1pexp", graph.matmul(x, w)))
    sys.path.remove(sys.path[0])  # as after a program file was read: no worker can import its neighbours
    best = mi.superoptimize(graph, device="cpu", rules=["log1pexp.egg"], jobs=2, max_block_ops=6, top=2, verbose=False)[0]
    print("tl.log(1.0 + tl.exp(product))" in best.source)
"""


@pytest.mark.slow
def test_functions_of_a_script_and_of_its_neighbour_reach_two_jobs(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "neighbour.py").write_text("def log1pexp(xp, x):\n    return xp.log1p(xp.exp(x))\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
