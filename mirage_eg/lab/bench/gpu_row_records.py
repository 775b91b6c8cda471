"""Rows of the GPU benchmark as records and as JSON lines."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mirage_eg.optimizer.tuning_database import append

ROWS, MEASUREMENTS = "rows.jsonl", "measurements.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload at one batch on one GPU; times in microseconds, `ceilings` in bytes and operations a second.

    `ours` has the times, µGraph, schedule and source of our kernels; `baselines` the times of each, or its `problem`.
    """

    workload: str
    batch: int
    device: str
    ours: Mapping[str, Any]
    baselines: Mapping[str, Mapping[str, Any]]
    lower_bound_us: float
    ceilings: Mapping[str, float]
    versions: Mapping[str, str]
    driver: list[str] | None = None
    multiprocessors: int | None = None
    time: float = 0.0  # seconds since 1970
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, int]:
        """Workload and batch."""
        return self.workload, self.batch


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of such a file, none where there is no file."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def append_row(path: Path, row: Row) -> None:
    """The row as a JSON line."""
    append(path, [{"kind": "row"} | asdict(row)])


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file."""
    names = {field.name for field in fields(Row)}
    for line in lines(path):
        yield Row(**{name: value for name, value in line.items() if name in names})
