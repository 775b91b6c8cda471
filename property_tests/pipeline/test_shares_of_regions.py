"""The regions of a program share its seconds: by their ops, and enough for a search of a small one."""

from types import SimpleNamespace
from typing import Any

import pytest

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.deadline import Deadline, after
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline import stages


def chain(ops: int) -> Graph:
    graph = new_kernel_graph()
    x = graph.new_input((8, 8))
    for _ in range(ops):
        x = graph.exp(x)
    graph.mark_output(x)
    return graph.graph()


def test_a_small_region_before_a_large_one_has_time_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = list[float]()

    def search(region: Any, until: Deadline, *_: Any) -> Any:
        seconds.append(until.left())
        return None

    monkeypatch.setattr(stages, "search_region", search)
    regions: Any = [SimpleNamespace(program=chain(ops), name=f"region {ops}", parts={}) for ops in (2, 300)]
    run: Any = SimpleNamespace(until=after(60.0), watch=SimpleNamespace(observer=lambda *_: None))
    stages._searched(run, regions, None, ())
    assert 2.0 < seconds[0] < 6.0 and seconds[1] == pytest.approx(51.0, abs=1.0)
