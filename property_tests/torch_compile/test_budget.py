"""One budget bounds the first call, whatever in it is slow. The clock is the test's own: slow functions turn it forward."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.backends.evaluator.evaluate import _Evaluation
from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.backends.triton import bounded_compile
from mirage_eg.ir import deadline
from mirage_eg.ir.errors import LimitError
from mirage_eg.search.partition import segment_search
from mirage_eg.torch_compile import compile_graph, segment_call, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Decision, graph_records
from property_tests.support.parameters import few
from property_tests.support.torch_cases import WIDTH, projected

BUDGET = 10.0


@dataclass
class Clock:
    """Seconds that pass only where a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def slow(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """`function`, which takes so many seconds."""

        def late(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            self.now += seconds
            return result

        return late


def slow_import(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    patch.setattr(compile_graph, "fx_regions", clock.slow(compile_graph.fx_regions, 1.5 * BUDGET))


def slow_search(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    patch.setattr(segment_search, "traced_search", clock.slow(segment_search.traced_search, BUDGET / 12))


def slow_evaluator(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    patch.setattr(_Evaluation, "_node", clock.slow(_Evaluation._node, BUDGET / 12))


def slow_compiler(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    call = Worker.call

    def stopped(self: Worker, function: Callable[..., Any], *arguments: Any, until: deadline.Deadline, **keywords: Any) -> Any:
        if function is not bounded_compile.compile_for:
            return call(self, function, *arguments, until=until, **keywords)
        clock.now = max(clock.now, until.at)
        raise LimitError("the compiler stopped")

    patch.setattr(Worker, "call", stopped)


def slow_gate(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    def interpreted(*_: Any) -> Any:
        while True:
            raise_if_stopped()
            clock.now += BUDGET / 12

    patch.setattr(segment_call, "run_interpreted", interpreted)


SLOW = (slow_evaluator, slow_compiler, slow_search, slow_gate, slow_import)


@pytest.mark.parametrize("slow", few([pytest.param(it, id=it.__name__) for it in SLOW], 2))
def test_what_is_slow_is_left_to_torch_within_the_budget(slow: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, x = Clock(), torch.randn(8, WIDTH)
    monkeypatch.setattr(deadline, "monotonic", clock)
    slow(monkeypatch, clock)
    segment_store.forget()
    begun = clock.now
    with torch.no_grad():
        options = {"budget": BUDGET, "rest": "eager", "gate": "cost", "cache": "off"}
        torch.testing.assert_close(torch.compile(projected, backend=backend, options=options)(x), projected(x))
    assert 0 < clock.now - begun <= (1.1 if slow is not slow_import else 1.5) * BUDGET
    [[segment]] = [record.segments for record in graph_records()]
    assert segment.decision is Decision.BUDGET and "10 s of budget" in segment.reason


def test_what_is_quick_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the same call, where nothing takes time."""
    monkeypatch.setattr(deadline, "monotonic", Clock())
    with torch.no_grad():
        options = {"budget": BUDGET, "rest": "eager", "gate": "cost", "cache": "off"}
        torch.compile(projected, backend=backend, options=options)(torch.randn(8, WIDTH))
    assert [record.used for record in graph_records()] == [1]
