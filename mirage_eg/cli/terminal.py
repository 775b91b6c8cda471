"""The output of all commands: tables and progress bars on a terminal, plain lines elsewhere, JSON on demand.

MIRAGE_EG_PROGRESS=off disables the progress lines if stderr is not a terminal.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from types import MappingProxyType
from typing import Annotated, Any, Literal, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mirage_eg.egraph.rule_files import readable
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.verify.verdict import Observer

Job = Callable[[], int]  # the work of a command; returns the exit code
Parameters = ParamSpec("Parameters")
WIDTH = 160  # columns of a table if stdout is not a terminal
PROGRESS_VARIABLE, OFF = "MIRAGE_EG_PROGRESS", "off"
SECONDS_A_LINE = 5.0  # between progress lines if stderr is not a terminal

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


def console() -> Console:
    """Stdout, with WIDTH columns if it is not a terminal."""
    stdout = Console()
    return stdout if stdout.is_terminal else Console(width=WIDTH)


def as_job(command: Callable[Parameters, int]) -> Callable[Parameters, Job]:
    """A command that typer reads, and `main` runs afterwards: typer would turn Ctrl-C into an end without a word."""

    @wraps(command)
    def read(*arguments: Parameters.args, **options: Parameters.kwargs) -> Job:
        return partial(command, *arguments, **options)

    return read


def print_line(text: str) -> None:
    """Print a line as it is: not folded, not coloured, without markup."""
    console().print(text, soft_wrap=True, highlight=False, markup=False)


def print_law(text: str) -> None:
    """Print a line about laws, with plain numbers in place of egglog's rationals."""
    print_line(readable(text))


def print_table(
    head: Iterable[str],
    rows: Iterable[Iterable[str]],
    title: str | None = None,
    left: Collection[str] | None = None,
    widths: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Print a table with one row of headings; where columns that stand `left` are named, the others stand right.

    `widths` are the least widths of columns.
    """
    table = Table(title=title, title_justify="left")
    for column in head:
        stands: Literal["left", "right"] = "left" if left is None or column in left else "right"
        table.add_column(column, justify=stands, overflow="fold", min_width=widths.get(column))
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)


@contextlib.contextmanager
def progress() -> Iterator[Observer]:
    """A progress bar for each stage on a terminal, else a line every few seconds."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        with _lines() as observe:
            yield observe
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


@contextlib.contextmanager
def _lines() -> Iterator[Observer]:
    """The current stage as a plain line on stderr every few seconds, also without new observations."""
    start, stopped, message = perf_counter(), Event(), "starting"

    def observe(stage: str, done: int, total: int | None, text: str) -> None:
        nonlocal message
        of = "" if total is None else f" {done} of {total}"
        message = f"{stage}{of}{', ' if text else ''}{text}"

    def report() -> None:
        while not stopped.wait(SECONDS_A_LINE):
            with contextlib.suppress(OSError):  # stderr is closed
                print(f"{perf_counter() - start:4.0f} s: {message}", file=sys.stderr, flush=True)

    if os.environ.get(PROGRESS_VARIABLE) == OFF:
        yield observe
        return
    reporter = Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield observe
    finally:
        stopped.set()
        reporter.join()


def json_line(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def append_line(path: Path, line: str) -> None:
    """Append a line to the file of `--out`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise OptionError(f"--out: {path}: cannot be written: {error.strerror or error}") from None
