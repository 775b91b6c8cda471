"""The tables of measurements/cost_model.md on segments of KernelBench: predicted times beside those of the gate."""

import json
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

LINES = Path(__file__).parent / "measurements" / "predicted_segments.jsonl"
LEAST, MOST = 0.7, 1.5  # predicted over measured


def tables() -> str:
    """How many segments are predicted within the bounds, by type and day of the measurement; and the others."""
    rows = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    groups = sorted({(row["measured"], row["dtype"]) for row in rows}, reverse=True)
    counted = [
        _counts(day, dtype, [it for it in rows if (it["measured"], it["dtype"]) == (day, dtype)]) for day, dtype in groups
    ]
    head = ("measured on", "type", "segments", "within 0.7 to 1.5", "mean factor")
    others = ("problem", "type", "measured on", "predicted, µs", "measured, µs", "over measured", "Inductor, µs")
    return "\n".join((*_table(head, counted), "", *_table(others, _others(rows)), ""))


def _ratio(row: dict[str, Any]) -> float:
    return float(row["predicted_us"] / row["measured_us"])


def _counts(day: str, dtype: str, rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    factor = exp(sum(abs(log(_ratio(row))) for row in rows) / len(rows))
    return day, dtype, str(len(rows)), str(sum(LEAST <= _ratio(row) <= MOST for row in rows)), f"{factor:.2f}"


def _others(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    for row in sorted(rows, key=lambda row: (row["measured"], row["dtype"]), reverse=True):
        if not LEAST <= _ratio(row) <= MOST:
            us = (f"{row[name]:,.0f}" for name in ("predicted_us", "measured_us"))
            name = row["problem"].removeprefix("level").replace("_", " ")
            yield name, row["dtype"], row["measured"], *us, f"{_ratio(row):.2f}", f"{row['inductor_us']:,.0f}"


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> Iterator[str]:
    yield from ("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))
