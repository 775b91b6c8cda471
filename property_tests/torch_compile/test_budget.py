"""One budget bounds the first call, whatever in it is slow."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.torch_compile import compile_graph, segment_call, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Decision, graph_records
from property_tests.support.parameters import few
from property_tests.support.slow_stages import BUDGET, SLOW, Clock
from property_tests.support.torch_cases import WIDTH, projected


def slow_import(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    patch.setattr(compile_graph, "fx_regions", clock.slow(compile_graph.fx_regions, 1.5 * BUDGET))


def slow_gate(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    def interpreted(*_: Any) -> Any:
        while True:
            raise_if_stopped()
            clock.now += BUDGET / 12

    patch.setattr(segment_call, "run_interpreted", interpreted)


@pytest.mark.parametrize("slow", few([pytest.param(it, id=it.__name__) for it in (*SLOW, slow_gate, slow_import)], 2))
def test_what_is_slow_is_left_to_torch_within_the_budget(slow: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, x = Clock(), torch.randn(8, WIDTH)
    slow(monkeypatch, clock)
    segment_store.forget()
    begun = clock.begin(monkeypatch)
    with torch.no_grad():
        options = {"budget": BUDGET, "rest": "eager", "gate": "cost", "cache": "off"}
        torch.testing.assert_close(torch.compile(projected, backend=backend, options=options)(x), projected(x))
    assert 0 < clock.now - begun <= (1.1 if slow is not slow_import else 1.5) * BUDGET
    [[segment]] = [record.segments for record in graph_records()]
    assert segment.decision is Decision.BUDGET and "10 s of budget" in segment.reason


def test_graphs_between_breaks_share_the_budget_of_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, left = Clock(), list[float]()
    clock.begin(monkeypatch)

    def gated(*arguments: Any) -> Any:
        until = arguments[3]
        left.append(until.left())
        clock.now += BUDGET / 5
        return [], [], until

    monkeypatch.setattr(compile_graph, "gated_records", gated)

    def inner(x: Any) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1

    def broken(x: Any, more: bool = False) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        x = inner(x * 2).cos()
        if more:
            torch._dynamo.graph_break()
            x = x * 3
        return x

    options = {"budget": BUDGET, "rest": "eager"}
    compiled, x = torch.compile(broken, backend=backend, options=options), torch.ones(3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), broken(x))
        shares = [(BUDGET - it) / (BUDGET / 5) for it in left]
        assert shares == pytest.approx([0, 1, 0, 1, 2])  # of broken twice, of inner twice, of broken
        compiled(x)
        assert len(left) == 5
        compiled(x, True)  # a later call has a budget of its own
        assert left[5] == pytest.approx(BUDGET)


def test_what_is_quick_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the same call, where nothing takes time."""
    Clock().begin(monkeypatch)
    with torch.no_grad():
        options = {"budget": BUDGET, "rest": "eager", "gate": "cost", "cache": "off"}
        torch.compile(projected, backend=backend, options=options)(torch.randn(8, WIDTH))
    assert [record.used for record in graph_records()] == [1]
