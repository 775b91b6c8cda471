"""`mirage-eg bench paper`: the published table of search times, measured here next to the published columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mirage_eg.cli.arguments import load_programs
from mirage_eg.cli.terminal import Job, JsonOption, console, json_line, progress
from mirage_eg.frontend.workloads import FEWEST
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.lab.bench.paper_table import SearchTime

_MOST = 11  # block ops of the published table
_COLOURS = {"indexed": "bar", "abstract": "floor", "without pruning": "bad"}


def bench_paper(
    program: Annotated[
        str,
        typer.Argument(metavar="PROGRAM", help="A workload, a graph in JSON, or a Python file; the published one is rmsnorm."),
    ] = "rmsnorm",
    max_block_ops: Annotated[int, typer.Option(help=f"Rows from {FEWEST} ops to so many.")] = _MOST,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time of one cell; larger rows of its column are left out.")
    ] = 10.0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write paper.csv and paper.svg.")] = None,
    as_json: JsonOption = False,
) -> Job:
    """Print the search time by block ops: by indexed laws, abstract laws, without pruning; in one process, on all cores."""

    def job() -> int:
        from mirage_eg.lab.bench.paper_table import DIFFERENCES, csv_text, measure
        from mirage_eg.lab.bench.search_programs import search_programs

        if max_block_ops < FEWEST:
            raise OptionError(f"--max-block-ops: got {max_block_ops}, wanted at least {FEWEST}")
        if not 0 < limit < float("inf"):
            raise OptionError(f"--limit: got {limit}, wanted seconds above 0")
        if out is not None:
            check_writable(out)
        [(name, graph)] = load_programs([program], ()).items()
        parts = search_programs(name, graph)
        if len(parts) > 1 or len(parts[0].named.program.outputs) > 1:
            raise OptionError(
                f"{name}: got a program of several kernels or outputs, wanted one of one block graph and one output"
            )
        rows = range(FEWEST, max_block_ops + 1)
        with progress() as observer:
            cells = measure(parts[0], rows, limit, on_cell=lambda done, total, text: observer("paper", done, total, text))
        if out is not None:
            write_atomically(out / "paper.csv", csv_text(cells))
            write_atomically(out / "paper.svg", _picture(name, cells))
        if as_json:
            print(json_line({"program": name, "limit": limit, "cells": cells, "differences": DIFFERENCES}))
            return 0
        _print(name, cells, rows)
        if out is not None:
            console().print(f"lines and picture: {out}", soft_wrap=True, highlight=False, markup=False)
        return 0

    return job


def _print(name: str, cells: "Sequence[SearchTime]", rows: Sequence[int]) -> None:
    from mirage_eg.lab.bench.paper_table import DIFFERENCES, column_name, columns

    heads = columns(cells)
    table = Table(
        "ops", title=f"{name}: seconds of the search by block ops; structures found; published seconds", title_justify="left"
    )
    for head in heads:
        table.add_column(column_name(*head), justify="right")
        if any(cell.published for cell in cells if (cell.method, cell.processes) == head) and name == "rmsnorm":
            table.add_column("published", justify="right")
    by_place = {(cell.block_ops, cell.method, cell.processes): cell for cell in cells}
    for ops in rows:
        entries = [str(ops)]
        for head in heads:
            cell = by_place.get((ops, *head))
            found = "" if cell is None or not cell.complete else f" ({cell.structures})"
            entries.append("–" if cell is None else f"{cell.text}{found}")
            if any(it.published for it in cells if (it.method, it.processes) == head) and name == "rmsnorm":
                entries.append(_published(ops, *head))
        table.add_row(*entries)
    console().print(table)
    console().print(
        "–: not tried, since fewer ops reach the limit. The published columns are those of Mirage (OSDI'25).", markup=False
    )
    for line in DIFFERENCES:
        console().print(line, markup=False, highlight=False, soft_wrap=True)


def _published(ops: int, method: str, processes: int) -> str:
    from mirage_eg.lab.bench.paper_table import published

    return published(ops, method, processes) or "–"


def _picture(name: str, cells: "Sequence[SearchTime]") -> str:
    from mirage_eg.lab.bench.paper_table import column_name, columns, published
    from mirage_eg.lab.charts import Curve, line_chart

    curves = []
    for method, processes in columns(cells):
        mine = [cell for cell in cells if (cell.method, cell.processes) == (method, processes)]
        points = tuple((float(cell.block_ops), max(cell.seconds, 1e-3)) for cell in mine)
        curves.append(Curve(column_name(method, processes), points, _COLOURS[method], cut=not mine[-1].complete))
        known = [(float(ops), published(ops, method, processes)) for ops in range(FEWEST, _MOST + 1)]
        theirs = [(ops, float(text.replace(",", ""))) for ops, text in known if text and text.replace(",", "").isdigit()]
        if theirs and name == "rmsnorm":
            curves.append(
                Curve(
                    f"published: {'one thread' if processes == 1 else 'many threads'}, {method}",
                    tuple(theirs),
                    _COLOURS[method],
                    dashed=True,
                )
            )
    return line_chart(curves, f"Search time of {name} by block ops", "block ops", "seconds")
