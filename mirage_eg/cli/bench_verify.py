"""`mirage-eg bench verify`: verdicts a second, small and at real size, stage by stage."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mirage_eg.cli.arguments import ProgramsArgument, load_programs
from mirage_eg.cli.terminal import Job, JsonOption, console, json_line, progress
from mirage_eg.frontend.workloads import STANDARD
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.output_files import check_writable


def bench_verify(
    programs: ProgramsArgument = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size; may be repeated.", show_default="1")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="On the GPU, through CuPy.")] = False,
    repetitions: Annotated[int, typer.Option(help="Runs of each stage, at least; the median is printed.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Append one JSON line a row.")] = None,
    as_json: JsonOption = False,
) -> Job:
    """Print the time of verdicts: on small instances, and at real size by stage.

    A program that no block graph can hold is measured segment by segment.
    """

    def job() -> int:
        from mirage_eg.lab.bench.search_programs import search_programs
        from mirage_eg.lab.bench.verify import measure

        if repetitions < 1 or any(size < 1 for size in batch or ()):
            raise OptionError(f"got {repetitions} repetitions and batches {batch or [1]}, wanted 1 or more of each")
        if out is not None:
            check_writable(out.parent)
        graphs = [(size, it) for size in batch or [1] for it in load_programs(programs, STANDARD, size).items()]
        jobs = [(part, size) for size, (name, graph) in graphs for part in search_programs(name, graph)]
        rows = []
        with progress() as observe:
            for done, (part, size) in enumerate(jobs):
                observe("verify", done, len(jobs), f"{part.name} b={size}")
                rows.append(measure(part, size, gpu, repetitions))
                if out is not None:
                    append_line(out, json_line(rows[-1]))
            observe("verify", len(jobs), len(jobs), "")
        if as_json:
            print(json_line(rows))
            return 0
        table = Table("program", "b", "small/s", "real/s", "inputs s", "field s", "float s", "proof s", "proved", "peak MiB")
        table.title, table.title_justify = f"verification on {rows[0].device}; {rows[0].versions}", "left"
        for row in rows:
            seconds = (row.inputs_seconds, row.field_seconds, row.float_seconds, row.prove_seconds)
            cells = (f"{row.small_per_second:.0f}", f"{row.real_per_second:.3g}", *(f"{value:.3f}" for value in seconds))
            table.add_row(row.workload, str(row.batch), *cells, "yes" if row.proved else "no", str(row.peak_mib))
        console().print(table)
        return 0

    return job


def append_line(path: Path, line: str) -> None:
    """Append a line to the file of `--out`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise OptionError(f"--out: {path}: cannot be written: {error.strerror or error}") from None
