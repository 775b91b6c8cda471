"""Events between launches: each generated kernel gets its own time, and none is recorded where none is asked for."""

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mirage_eg.backends.runtime.running_program as runtime
from mirage_eg.backends.measure.candidate_timer import EventDriver
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from property_tests.backends.runtime.test_running_program import uncompiled
from property_tests.support.fake_driver import FakeDriver, FakeLibrary, arrays_for, layouts
from property_tests.support.hand_written import split_attention


class Clock:
    """Events of a GPU on which the first kernel takes 3 µs and the second 5."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver

    def event(self, **options: Any) -> Any:
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = sum(0.003 if place % 2 == 0 else 0.005 for place in range(len(self.driver.launched)))

        event.record, event.elapsed_time = record, lambda end: end.at - event.at
        return event


def times(run: Callable[[], object], number: int) -> Callable[[], object]:
    """Stands for the capture of a CUDA graph."""
    for _ in range(number):
        run()
    return run


def test_each_kernel_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    monkeypatch.setattr("mirage_eg.backends.measure.candidate_timer.captured", times)
    fake, library, made = FakeDriver(inside=1), FakeLibrary(), count()
    clock = Clock(fake)
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: (next(made), clock.event(**options))[1])
    graph = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 8).mugraph
    with loaded(emit(graph)) as module:
        driver = EventDriver(fake)
        program = RunningProgram(module, graph.input_names, layouts(graph.output_names, graph.output_types), driver)
        run = program.repeated(arrays_for(program), library)
        run()
        assert next(made) == 0
        us = driver.kernels_us(run)
        functions = program.functions(0)
        assert [us[functions[name].handle] for name in module.SIGNATURES] == pytest.approx([3.0, 5.0])
        before = next(made)
        run()
        assert next(made) == before + 1


def test_what_cannot_be_captured_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.backends.measure.candidate_timer.captured", lambda run, number: None)
    assert EventDriver(FakeDriver()).kernels_us(lambda: None) == {}
