"""The regions of a program share its seconds: twice their part by their ops, and enough for a search of a small one."""

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
@pytest.mark.parametrize(("ops", "wanted"), [((2, 300), (5.5, 51)), ((60, 60, 60), (34, 38.25, 51))])
def test_a_region_has_twice_its_part_and_leaves_others_half_of_theirs(
    ops: tuple[int, ...], wanted: tuple[float, ...], ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = list[float]()

    def search(region: Any, until: Deadline, *_: Any) -> Any:
        seconds.append(until.left())

    def search_ahead(run: Any) -> Any:
        return [search(None, run.until)]

    run: Any = SimpleNamespace(until=after(60.0), watch=SimpleNamespace(observer=lambda *_: None))
    regions: Any = [SimpleNamespace(program=chain(count), name=f"region {count}", parts={}, run=run) for count in ops]
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
    assert seconds == pytest.approx(wanted, abs=1.0)
