"""The GPU benchmark: one process a row (`bench_row`), rows side by side where wished, and the table of all rows there are.

Rows that have been measured stay in FOLDER/rows.jsonl; the newest of each workload and batch counts, so that runs on machines
lent for minutes add up.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import exp, log
from pathlib import Path

from mirage_eg.frontend.workloads import PAPER
from mirage_eg.ir.errors import MirageError
from mirage_eg.lab.bench.gpu_processes import End, run_on_gpus, visible_gpus
from mirage_eg.lab.bench.gpu_row_records import ROWS, Row, read_rows
from mirage_eg.optimizer.tuning_database import append
from mirage_eg.pipeline.run.executors import usable_cores
from mirage_eg.pipeline.run.gpu_options import GpuOptions
from mirage_eg.report.bars import Bar, bars

BATCHES = (1, 8, 16)
FAILURES = "failures.jsonl"

Key = tuple[str, int]  # workload and batch


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that came to no end, and the last it said."""

    workload: str
    batch: int
    reason: str


def run_rows(
    rows: Sequence[Key],
    folder: Path,
    options: GpuOptions,
    on_progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> list[Failure]:
    """Measure the rows, at most `options.parallel` at a time on each visible GPU, each for `options.row_seconds`.

    Rows side by side share the cores: while some compile, others are on the GPU.
    """
    if find_spec("torch") is None:
        raise MirageError("bench gpu: needs torch, with which it times and compares; pip install torch")
    devices = [device for _ in range(options.parallel) for device in visible_gpus()]
    folder.mkdir(parents=True, exist_ok=True)
    together = min(len(devices), len(rows))
    if options.jobs is None and together > 1:
        options = replace(options, jobs=max(2, 2 * usable_cores() // together))
    failures: list[Failure] = []
    done = 0

    def command(row: Key) -> list[str]:
        return ["-m", "mirage_eg.lab.bench.gpu_row", row[0], str(row[1]), str(folder), json.dumps(asdict(options))]

    def ended(row: Key, end: End) -> bool:
        nonlocal done
        done += 1
        if end.code != 0:
            why = f"took over {options.row_seconds:g} s" if end.late else f"ended with code {end.code}"
            failures.append(Failure(*row, f"{why}: {end.said}"))
            append(folder / FAILURES, [asdict(failures[-1])])
        on_progress(done, len(rows), f"{row[0]} b{row[1]}")
        return False

    run_on_gpus(rows, command, devices, options.row_seconds, ended)
    return failures


@dataclass(frozen=True, slots=True)
class Summary:
    """A row of the table; times in microseconds, ratios above 1 where ours is faster; None where something was not measured."""

    workload: str
    batch: int
    warm_us: float
    cold_us: float
    baseline: str | None
    baseline_warm_us: float | None
    baseline_cold_us: float | None
    warm_ratio: float | None
    cold_ratio: float | None
    lower_bound_us: float
    lower_bound_ratio: float


def newest(path: Path) -> dict[Key, Row]:
    """The newest row of each workload and batch.

    A baseline that it lacks, or that failed in it, is that of the row before on the same device.
    """
    rows: dict[Key, Row] = {}
    for row in read_rows(path):
        before = rows.get(row.key)
        if before is not None and before.device == row.device:
            kept = {name: it for name, it in before.baselines.items() if "warm_us" not in row.baselines.get(name, {})}
            row = replace(row, baselines={**row.baselines, **kept})
        rows[row.key] = row
    return rows


def summarize(path: Path) -> Iterator[Summary]:
    """The table's rows, in the order of the workloads."""
    rows = newest(path)
    order = {name: position for position, name in enumerate(PAPER)}
    for key in sorted(rows, key=lambda key: (order.get(key[0], len(order)), *key)):
        row = rows[key]
        ours_warm, ours_cold = row.ours["warm_us"], row.ours["cold_us"]
        timed = {name: baseline for name, baseline in row.baselines.items() if "warm_us" in baseline}
        best = min(timed, key=lambda name: float(timed[name]["warm_us"]), default=None)
        warm = None if best is None else timed[best]["warm_us"]
        cold = min((baseline["cold_us"] for baseline in timed.values()), default=None)
        yield Summary(
            row.workload,
            row.batch,
            ours_warm,
            ours_cold,
            best,
            warm,
            cold,
            None if warm is None else warm / ours_warm,
            None if cold is None else cold / ours_cold,
            row.lower_bound_us,
            row.lower_bound_us / ours_warm,
        )


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that fits ratios."""
    return exp(sum(map(log, values)) / len(values))


def rows_path(folder: Path) -> Path:
    """The file with the lines of all rows."""
    return folder / ROWS


def ratio_chart(rows: Sequence[Summary], title: str) -> str:
    """How much faster ours is than the best baseline, warm and cold; beyond the line at 1 ours is faster."""
    ratios = [
        Bar(f"{row.workload} b{row.batch}, {name}", ratio, "other" if name == "cold" else "bar")
        for row in rows
        for name, ratio in (("warm", row.warm_ratio), ("cold", row.cold_ratio))
        if ratio is not None
    ]
    return bars(ratios, [("best baseline", 1.0)], title, "{:.2f}")
