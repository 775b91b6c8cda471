"""The regions of a program share its seconds: by their ops, and enough for a search of a small one."""

from contextlib import nullcontext
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


@pytest.mark.parametrize("ahead", [False, True])
def test_a_small_region_before_a_large_one_has_time_for_a_search(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = list[float]()

    def search(region: Any, until: Deadline, *_: Any) -> Any:
        seconds.append(until.left())

    def search_ahead(run: Any) -> Any:
        return [search(None, run.until)]

    run: Any = SimpleNamespace(until=after(60.0), watch=SimpleNamespace(observer=lambda *_: None))
    regions: Any = [SimpleNamespace(program=chain(ops), name=f"region {ops}", parts={}, run=run) for ops in (2, 300)]
    monkeypatch.setattr(stages, "search_region", search)
    monkeypatch.setattr(stages, "_search", search_ahead)
    monkeypatch.setattr(stages, "_begun", lambda request: nullcontext((run, [])))
    monkeypatch.setattr(stages, "_with_constants", lambda run: (run, []))
    monkeypatch.setattr(stages, "divide", lambda run: regions)
    monkeypatch.setattr(stages, "replace", lambda it, **fields: it and SimpleNamespace(**vars(it) | fields))
    if ahead:
        stages.search_ahead(run)
    else:
        stages._searched(run, regions, None, ())
    assert 2.0 < seconds[0] < 6.0 and seconds[1] == pytest.approx(51.0, abs=1.0)
