"""What all commands print with: tables and bars where there is a terminal, JSON in one line where it is asked for."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

Job = Callable[[], int]  # what a command wants done; gives the exit code
Observer = Callable[[str, int, int | None, str], None]  # stage, done, of how many, note
WIDTH = 160  # columns of a table where stdout is no terminal

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


def console() -> Console:
    """Stdout, wide where it is no terminal."""
    own = Console()
    return own if own.is_terminal else Console(width=WIDTH)


@contextlib.contextmanager
def progress() -> Iterator[Observer]:
    """A bar for each stage on a terminal, else nothing."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield lambda stage, done, total, text: None
        return
    columns = (
        TextColumn("{task.fields[stage]:<12}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=stderr) as bars:
        tasks: dict[str, TaskID] = {}

        def observe(stage: str, done: int, total: int | None, text: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task("", total=total, stage=stage, note="")
            bars.update(tasks[stage], completed=done, total=total, note=text)

        yield observe


def record(value: Any) -> dict[str, Any]:
    """The fields of a frozen record."""
    if isinstance(value, Mapping):
        return dict(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def json_line(value: Any) -> str:
    """The value as JSON."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The value in JSON's types; NaN and infinities, which JSON lacks, become null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int():
            return value
        case str() | Path() | Fraction():
            return str(value)
        case Mapping():
            return {str(key): plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [plain(entry) for entry in value]
        case _ if dataclasses.is_dataclass(value):
            return {name: plain(entry) for name, entry in record(value).items()}
        case _:
            raise TypeError(f"got {value!r}, which JSON cannot hold")
