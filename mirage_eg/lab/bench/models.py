"""`mirage-eg bench models`: a process and a time limit for each model, models side by side on the visible GPUs.

A second process of the model compiles it again with the caches of the first, unless `once`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mirage_eg.lab.bench.gpu_processes import End, run_on_gpus, visible_gpus
from mirage_eg.lab.bench.model_row_records import ModelJob, ModelRow, row_of


@dataclass(slots=True)
class _Work:
    """A job with a folder for its rows and caches; the row of the first process, once that has ended."""

    job: ModelJob
    folder: Path
    row: ModelRow | None = None

    def found(self, name: str) -> Any:
        """What a process has written."""
        path = self.folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def measure_models(
    jobs: Sequence[ModelJob],
    seconds: float,
    on_row: Callable[[ModelRow], None],
    on_progress: Callable[[int, int, str], None] = lambda done, total, text: None,
    *,
    once: bool = False,
) -> None:
    """Give `on_row` the row of each job as it ends; one that takes more than `seconds` has what was found, and the problem."""
    done = 0
    on_progress(0, len(jobs), jobs[0].model if jobs else "")

    def ended(work: _Work, end: End) -> bool:
        nonlocal done
        if work.row is None:
            found = work.found("row.json")
            work.row = _row_after(row_of(found) if found is not None else ModelRow(work.job), end, seconds)
            if work.row.problem is None and len(work.job.modes) > 1 and not once:
                return True
            warm: dict[str, float] = {}
        else:
            warm = work.found("warm.json") or {}
            work.row = _row_after(work.row, end, seconds)
        on_row(_warmed(work.row, warm))
        done += 1
        on_progress(done, len(jobs), work.job.model)
        return False

    with ExitStack() as folders:
        works = [_Work(job, Path(folders.enter_context(TemporaryDirectory(prefix="mirage_eg_model_")))) for job in jobs]
        devices = visible_gpus() if jobs and jobs[0].device == "cuda" else [""]
        run_on_gpus(works, _command, devices, seconds, ended, own_cores=True)


def _command(work: _Work) -> list[str]:
    name, options = ("row.json", []) if work.row is None else ("warm.json", ["--warm"])
    given = json.dumps({"job": asdict(work.job), "caches": str(work.folder)})
    return ["-m", "mirage_eg.lab.bench.model_row", given, str(work.folder / name), *options]


def _row_after(row: ModelRow, end: End, seconds: float) -> ModelRow:
    if end.late:
        return replace(row, problem=f"took over {seconds:g} s")
    return replace(row, problem=f"the process ended with code {end.code}: {end.said}") if end.code else row


def _warmed(row: ModelRow, seconds: Mapping[str, float]) -> ModelRow:
    return replace(row, contestants={mode: replace(it, warm_seconds=seconds.get(mode)) for mode, it in row.contestants.items()})
