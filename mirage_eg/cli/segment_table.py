"""The segments of models as `bench models` prints them: the gate's decisions, and the kernels that the profiler saw."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from mirage_eg.lab.bench.models import ModelResult


def segment_table(results: "Sequence[ModelResult]") -> Table:
    """A row for each segment of each model."""
    table = Table("segment", "ops", "decision", "kernels", "tuned", "ours µs (cold)", "Inductor µs (cold)", "")
    for result in results:
        for number, part in enumerate(result.parts, 1):
            it = part.record
            times = [_time(it.ours_us, it.ours_cold_us, it.measured), _time(it.other_us, it.other_cold_us, it.measured)]
            notes = "; ".join(text for text in (it.reason, it.summary) if text)
            tuned = "yes" if it.tuned else "no"
            table.add_row(f"{result.name}, {number}", str(it.ops), it.decision, str(it.kernels), tuned, *times, notes)
        for reason in result.fallbacks:
            table.add_row(f"{result.name}, a graph", "", "to Inductor", "", "", "", "", reason)
    return table


def _time(us: float | None, cold: float | None, measured: bool) -> str:
    if us is None:
        return "–"
    return f"{us:.1f} ({cold:.1f})" if measured and cold is not None else f"{us:.1f} predicted"


def kernel_lines(results: "Sequence[ModelResult]") -> Iterator[str]:
    """A line for each list of kernels that the profiler gave."""
    for result in results:
        lists = [(f"segment {number}", part.kernels) for number, part in enumerate(result.parts, 1)]
        for name, kernels in [*lists, *result.kernels.items()]:
            if kernels:
                launches, us = sum(kernel.launches for kernel in kernels), sum(kernel.us for kernel in kernels)
                each = "; ".join(f"{kernel.name[:60]} {kernel.launches:g}× {kernel.us:.1f}" for kernel in kernels)
                yield f"{result.name}, {name}: {launches:g} kernels, {us:.1f} µs: {each}"
