"""The GPU benchmark: one process a row (`bench_row`), rows side by side where wished, and the table of all rows there are.

Rows that have been measured stay in FOLDER/rows.jsonl; the newest of each workload and batch counts, so that runs on machines
lent for minutes add up.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import exp, log
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter, sleep
from typing import IO

from mirage_eg.bench.gpu_row import DEVICE_LOST, ROWS, RowOptions, append, lines
from mirage_eg.frontend.workloads import PAPER
from mirage_eg.ir.errors import MirageError
from mirage_eg.optimizer.tune import Record

BATCHES = (1, 8, 16)
FAILURES = "failures.jsonl"
_ATTEMPTS = 4  # of a row whose GPU context is lost
_TAIL = 1500  # characters of what a failed row said

Row = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that came to no end, and the last it said."""

    workload: str
    batch: int
    reason: str


@dataclass(slots=True)
class _Running:
    row: Row
    process: "subprocess.Popen[bytes]"
    said: IO[bytes]
    started: float
    device: str
    attempt: int


def run_rows(
    rows: Sequence[Row],
    folder: Path,
    options: RowOptions,
    *,
    parallel: int = 1,
    row_seconds: float = 300.0,
    on_progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> list[Failure]:
    """Measure the rows, at most `parallel` at a time on each visible GPU, each for at most `row_seconds`.

    Rows side by side share the cores: while some compile, others are on the GPU.
    """
    if find_spec("torch") is None:
        raise MirageError("bench gpu: needs torch, with which it times and compares; pip install torch")
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [(row, 1) for row in rows]
    free = [device for _ in range(parallel) for device in visible_gpus()]
    together = min(len(free), len(rows))
    if options.jobs is None and together > 1:
        options = replace(options, jobs=max(2, 2 * (os.cpu_count() or 1) // together))
    running: list[_Running] = []
    failures: list[Failure] = []
    done = 0
    try:
        while waiting or running:
            while waiting and free:
                row, attempt = waiting.pop(0)
                running.append(_start(row, folder, options, free.pop(0), attempt))
            sleep(0.1)
            for entry in list(running):
                late = perf_counter() - entry.started > row_seconds
                if entry.process.poll() is None and not late:
                    continue
                running.remove(entry)
                free.append(entry.device)
                if late:
                    entry.process.kill()
                code = entry.process.wait()
                told = _tail(entry.said)
                if code == DEVICE_LOST and entry.attempt < _ATTEMPTS:
                    waiting.insert(0, (entry.row, entry.attempt + 1))
                    continue
                done += 1
                if code != 0:
                    why = f"took over {row_seconds:g} s" if late else f"ended with code {code}"
                    failures.append(Failure(*entry.row, f"{why}: {told}"))
                    append(folder / FAILURES, asdict(failures[-1]))
                on_progress(done, len(rows), f"{entry.row[0]} b{entry.row[1]}")
    finally:
        for entry in running:
            entry.process.kill()
            entry.process.wait()
            entry.said.close()
    return failures


def visible_gpus() -> list[str]:
    """Names by which CUDA_VISIBLE_DEVICES selects the GPUs that this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        raise MirageError("bench gpu: no GPU here: there is no nvidia-smi; run it on a machine with a CUDA GPU") from None
    names = listed.stdout.split() if listed.returncode == 0 else []
    if not names:
        raise MirageError("bench gpu: nvidia-smi lists no GPU; run it on a machine with a CUDA GPU")
    return names


def _start(row: Row, folder: Path, options: RowOptions, device: str, attempt: int) -> _Running:
    said = TemporaryFile()  # noqa: SIM115 – read once the process has ended
    command = [sys.executable, "-m", "mirage_eg.bench.gpu_row", row[0], str(row[1]), str(folder), json.dumps(asdict(options))]
    threads = str(max(1, (os.cpu_count() or 1) // 4))
    root = str(Path(__file__).parents[2])  # where the package is, installed or not
    environment = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads} | os.environ
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment["CUDA_VISIBLE_DEVICES"] = device
    process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
    return _Running(row, process, said, perf_counter(), device, attempt)


def _tail(said: IO[bytes]) -> str:
    """The end of what a process said; nothing more is read from it."""
    with said:
        said.seek(0)
        return " ".join(said.read().decode(errors="replace")[-_TAIL:].split())


@dataclass(frozen=True, slots=True)
class Summary:
    """A row of the table; times in microseconds, ratios above 1 where ours is faster; None where something was not measured."""

    workload: str
    batch: int
    warm_us: float
    cold_us: float
    peer: str | None
    peer_warm_us: float | None
    peer_cold_us: float | None
    warm_ratio: float | None
    cold_ratio: float | None
    floor_us: float
    floor_ratio: float


def newest(path: Path) -> dict[Row, Record]:
    """The newest line of each row; what one lacks (peers, say) is taken from the one before on the same device."""
    found: dict[Row, Record] = {}
    for line in lines(path):
        row = (line["workload"], line["batch"])
        before = found.get(row)
        if before is not None and before["device"] == line["device"] and not line["peers"]:
            line = line | {"peers": before["peers"]}
        found[row] = line
    return found


def summarize(path: Path) -> Iterator[Summary]:
    """The table's rows from the lines, in the order of the workloads."""
    found = newest(path)
    order = {name: place for place, name in enumerate(PAPER)}
    for workload, batch in sorted(found, key=lambda row: (order.get(row[0], len(order)), *row)):
        line = found[workload, batch]
        ours = line["ours"]
        timed = {name: peer for name, peer in line["peers"].items() if "warm_us" in peer}
        best = min(timed, key=lambda name: float(timed[name]["warm_us"]), default=None)
        warm = None if best is None else timed[best]["warm_us"]
        cold = min((peer["cold_us"] for peer in timed.values()), default=None)
        yield Summary(
            workload,
            batch,
            ours["warm_us"],
            ours["cold_us"],
            best,
            warm,
            cold,
            None if warm is None else warm / ours["warm_us"],
            None if cold is None else cold / ours["cold_us"],
            line["floor_us"],
            line["floor_us"] / ours["warm_us"],
        )


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that fits ratios."""
    return exp(sum(map(log, values)) / len(values))


def rows_path(folder: Path) -> Path:
    """Where the lines of all rows stand."""
    return folder / ROWS
