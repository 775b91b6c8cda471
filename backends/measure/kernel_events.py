"""The time of each generated kernel in a run of a program, by events between the launches.

The events are captured in a CUDA graph with the kernels. Torch's profiler gives the same times without the gaps between
events and kernels, but took seconds for each layer of `bench models` (H200, torch 2.11).
"""

from collections.abc import Callable
from statistics import median
from typing import Any

from mirage_eg.backends.measure.timing import captured
from mirage_eg.backends.runtime.cuda_driver import Driver, Function, LaunchCall
from mirage_eg.ir.shapes import Shape

_RUNS = 10


class EventDriver:
    """A driver that can record an event before each launch and one after it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._recorded: list[tuple[int, Any, Any]] | None = None  # handles of functions with events; None: record none

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def prepare(self, function: Function, grid: Shape, stream: int, parameters: Any) -> LaunchCall:
        """The driver's launch, which records events while kernels are timed."""
        launch = self._driver.prepare(function, grid, stream, parameters)

        def recorded() -> int:
            if self._recorded is None:
                return launch()
            import torch

            start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
            start.record()
            status = launch()
            end.record()
            self._recorded.append((function.handle, start, end))
            return status

        return recorded

    def kernels_us(self, run: Callable[[], object]) -> dict[int, float]:
        """The microseconds of each function in one run, by its handle; none if the run cannot be captured.

        A function that is launched several times has their sum.
        """
        self._recorded = []
        try:
            if captured(run, _RUNS) is None:
                return {}
            times: dict[int, list[float]] = {}
            for handle, start, end in self._recorded:
                times.setdefault(handle, []).append(1000.0 * start.elapsed_time(end))
        finally:
            self._recorded = None
        return {handle: median(us) * len(us) / _RUNS for handle, us in times.items()}
