"""`mirage-eg bench kernelbench`: which problems of a KernelBench checkout import, and whether the programs are right."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mirage_eg.cli.bench_verify import append_line
from mirage_eg.cli.terminal import Job, console, json_line, progress
from mirage_eg.ir.errors import OptionError


def bench_kernelbench(
    problems: Annotated[
        list[str] | None, typer.Argument(metavar="PROBLEM…", help="As level1, level1/19 or level1/19_ReLU; all without.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="PATH", envvar="KERNELBENCH_DIR", help="A checkout, with KernelBench/level1/*.py."),
    ] = None,
    shrink: Annotated[bool, typer.Option("--shrink", help="Smaller sizes, which a CPU computes in seconds.")] = False,
    seconds: Annotated[float, typer.Option(help="Processor time of a problem.")] = 120.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Append one JSON line a problem.")] = None,
) -> Job:
    """Import the problems of a KernelBench checkout, and compare each imported program with its model in float64."""

    def job() -> int:
        from mirage_eg.lab.bench.kernelbench import Import, find_problems, import_rows, summary

        if folder is None:
            raise OptionError("--dir: wanted the folder of a KernelBench checkout, here or in KERNELBENCH_DIR")
        if not 0 < seconds < float("inf"):
            raise OptionError(f"--seconds: got {seconds}, wanted more than 0")
        found = find_problems(folder, problems or ())
        rows = []
        with progress() as observe:
            for row in import_rows(found, shrink, seconds):
                rows.append(row)
                error = "" if row.error is None else f"error {row.error:.1e}, {row.ops} ops"
                print(f"{row.problem}: {row.result}{': ' if error or row.reason else ''}{row.reason or error}", flush=True)
                if out is not None:
                    append_line(out, json_line(row))
                observe("import", len(rows), len(found), row.problem)
        head, *lines = summary(rows)
        table = Table(*head)
        for line in lines:
            table.add_row(*line)
        console().print(table)
        return int(any(row.result in (Import.WRONG, Import.FAILED) for row in rows))

    return job
