"""A timer of candidates without a GPU: the longest source is the fastest. Tuning runs as on a GPU."""

import re

import pytest

from mirage_eg.backends.measure.timing import Outcome, Timing


class SourceTimer:
    """Times made up from the lengths of sources; `asked` has those that were timed."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def quick(self, source: str) -> Outcome:
        self.asked.append(source)
        return Outcome(_us(source), 1e-4, None, (1.0,) * len(re.findall(r"^def \w+_kernel\(", source, re.M)))

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        return Outcome(_us(source), 1e-4, None), _timing(_us(source))


def time_by_source(monkeypatch: pytest.MonkeyPatch) -> SourceTimer:
    """Runs take a SourceTimer for the GPU here; what it has not timed takes a second."""
    timer = SourceTimer()
    monkeypatch.setattr("mirage_eg.pipeline.optimize.for_this_machine", lambda options: (options, True))
    monkeypatch.setattr("mirage_eg.pipeline.tune_stage.open_timer", lambda *_: timer)
    monkeypatch.setattr("mirage_eg.backends.measure.timing.gpu_name", lambda: "no GPU")
    monkeypatch.setattr("mirage_eg.backends.measure.timing.time_source", lambda source: _timing(1e6))
    return timer


def _us(source: str) -> float:
    return 1e6 / len(source)


def _timing(us: float) -> Timing:
    return Timing(us, 0.1, us, 0.1, "graph", "no GPU")
