"""What a run found, for a notebook: the funnel, the times as bars, and the compiler's word."""

from collections.abc import Mapping, Sequence
from typing import Any

from mirage_eg.pipeline.run.records import CompileRecord
from mirage_eg.report.bars import Bar, bars
from mirage_eg.report.funnel import funnel
from mirage_eg.report.tables import table


def result_html(report: Mapping[str, Any]) -> str:
    """The funnel and the times of a report."""
    return funnel(report) + time_bars(report)


def time_bars(report: Mapping[str, Any], marks: Sequence[tuple[str, float]] = ()) -> str:
    """The µGraphs of a report by their measured times, or the cost model's where nothing was measured."""
    mugraphs = report["mugraphs"]
    shown = []
    for rank, entry in enumerate(mugraphs, 1):
        kernels = f"{entry['kernels']} kernel{'' if entry['kernels'] == 1 else 's'}"
        us = entry["predicted_us"] if entry["measured_us"] is None else entry["measured_us"]
        shown.append(Bar(f"#{rank} {kernels}", us, not entry["fused"]))
    measured = mugraphs[0]["measured_us"] is not None
    return bars(shown, marks, f"µs, measured on {report['device']}" if measured else "µs, predicted by the cost model")


def compile_table(records: Sequence[CompileRecord]) -> str:
    """What the compiler said for each target: the most that one kernel takes, and all spills."""
    rows = [
        (
            record.target,
            "yes" if record.ok else f"no: {record.error}",
            *("–" if count is None else f"{count:,}" for count in (record.shared_memory, record.registers, record.spills)),
        )
        for record in records
    ]
    return table(("target", "compiles", "bytes of shared memory", "registers a thread", "bytes spilled a thread"), rows)
