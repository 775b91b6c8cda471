"""A clock that passes only where a test says so, and slow functions of a run, which turn it forward: no test waits for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mirage_eg.backends.evaluator.evaluate import _Evaluation
from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.backends.triton import bounded_compile
from mirage_eg.ir import deadline
from mirage_eg.ir.errors import LimitError
from mirage_eg.search.partition import segment_search
from mirage_eg.search.trace import traced_search

BUDGET = 10.0


@dataclass
class Clock:
    """Seconds that pass only where a test says so."""

    now: float = 1000.0

    def begin(self, patch: pytest.MonkeyPatch) -> float:
        """Rule all deadlines from now on."""
        patch.setattr(deadline, "monotonic", self)
        return self.now

    def __call__(self) -> float:
        return self.now

    def slow(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """`function`, which takes so many seconds."""

        def late(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            self.now += seconds
            return result

        return late


def slow_search(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    patch.setattr(segment_search, "traced_search", clock.slow(traced_search, BUDGET / 12))


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


SLOW = (slow_evaluator, slow_compiler, slow_search)  # stages of a run
