"""The memory of verification depends on the program, not on how many µGraphs are verified."""

import json
import resource
import subprocess
import sys
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.backends.evaluator.memoization import Contents, MemoBudget
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.verify import random_inputs
from mirage_eg.verify.reference import Reference
from property_tests.frontend.test_mirage_json import FOLDER, PROGRAMS, gated, published
from property_tests.support.mirage_json_writer import write
from property_tests.support.parameters import few

LIMIT = 6 << 30  # bytes of address space


def candidate(number: int, right: bool) -> Graph:
    """Row sums of x · w, squared, by way of values that no other number has, each as large as the product."""
    graph = new_kernel_graph()
    x, w = graph.new_input((64, 32), "float32"), graph.new_input((32, 2048), "float32")
    y = graph.scale(graph.matmul(graph.scale(x, number + 2), w), Fraction(1, number + 2) if right else 1)
    graph.mark_output(graph.sum(graph.relu(graph.square(y)), 1))
    return graph.graph()


def peak_bytes(count: int, right: bool) -> int:
    program = candidate(0, True)
    reference = Reference(program)
    tracemalloc.start()
    try:
        verdicts = reference.check_all([candidate(number + 1, right) for number in range(count)])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert all(verdict.equal == right for verdict, _ in verdicts)


@pytest.mark.parametrize("right", few([True, False], 1))
def test_twenty_graphs_are_verified_in_the_memory_of_five(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    monkeypatch.setattr(random_inputs, "MEMO_BYTES", 4 << 20)
    few, many = peak_bytes(5, right), peak_bytes(20, right)
    assert many < 1.1 * few


def test_a_memo_over_budget_clears_the_others_and_not_itself() -> None:
    budget = MemoBudget(100)
    first, second = Contents(budget), Contents(budget)
    assert budget.holds(80, first)
    first.store("a", [], 80)
    assert not budget.holds(30, first) and first.results
    assert budget.holds(30, second) and not first.results
    assert not budget.holds(101, second)


def batch(graph: list[Any], factor: int) -> list[Any]:
    """A published µGraph whose first dim is the batch, which the first grid dim walks, for a larger batch."""
    graph = json.loads(json.dumps(graph))
    for operator in graph:
        inside = operator.get("bgraph", {"grid_dim": {"x": 0}, "operators": []})
        inside["grid_dim"]["x"] *= factor
        memory = [inner["dtensor"] for inner in inside["operators"] if "dtensor" in inner]
        for tensor in [*operator["input_tensors"], *operator["output_tensors"], *memory]:
            tensor["dim"][0] *= factor
    return graph


def peak_mib(path: Path, program: str, batch: int) -> int:
    """The peak of `verify --json` for a file, within the limit on address space."""
    done = subprocess.run(
        [sys.executable, "-m", "mirage_eg", "verify", program, str(path), "--batch", str(batch), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )
    assert done.returncode in (0, 1), done.stderr
    return max(json.loads(line)["peak_mib"] for line in done.stdout.splitlines())


@published
@pytest.mark.slow
def test_a_long_published_file_takes_the_memory_of_a_short_one(tmp_path: Path) -> None:
    graphs = [batch(graph, 8) for graph in json.loads((FOLDER / "qknorm_gqa_bs1_first10.json").read_bytes())]
    peaks = []
    for count in (2, 5):  # of a single one nothing is kept for others
        path = tmp_path / f"{count}.json"
        path.write_text(json.dumps(graphs[:count]))
        peaks.append(peak_mib(path, str(PROGRAMS / "qknorm.py"), 8))
    assert peaks[1] < peaks[0] + 300 and max(peaks) < 4096  # each graph has a product of 128 MiB, five times over


def test_verify_says_how_much_memory_it_took(tmp_path: Path) -> None:
    path, program = tmp_path / "graphs.json", tmp_path / "program.py"
    path.write_text(json.dumps(write(*[gated(True, 1)] * 3)))
    program.write_text(
        "from property_tests.frontend.test_mirage_json import gated\ndef program():\n    return gated(False, 1)\n"
    )
    assert 10 < peak_mib(path, str(program), 1) < 1024
