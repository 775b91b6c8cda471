"""`mirage-eg bench gpu`: our kernels and their peers on the GPU at hand, row by row, as a table, lines and a picture."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mirage_eg.cli.terminal import Job, JsonOption, console, json_line, progress
from mirage_eg.frontend.workloads import PAPER, WORKLOADS
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.bench.gpu import Summary

_PEERS = ("all", "quick", "none")
_PEERS_HELP = "Which peers to time: all, quick (without max-autotune), none (those of an earlier run in the folder count)."


def bench_gpu(
    workloads: Annotated[list[str] | None, typer.Argument(metavar="WORKLOAD…", help=", ".join(WORKLOADS))] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch sizes; default 1, 8 and 16.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of lines and picture; earlier rows in it count too.")] = Path(
        "mirage_bench"
    ),
    peers: Annotated[str, typer.Option(help=_PEERS_HELP)] = "all",
    parallel: Annotated[int, typer.Option(help="Rows side by side on a GPU; they take turns on it.")] = 1,
    seconds: Annotated[float, typer.Option(help="Seconds of tuning a row, without waiting for the GPU.")] = 60.0,
    row_seconds: Annotated[float, typer.Option(help="Seconds after which a row is given up.")] = 600.0,
    structures: Annotated[int, typer.Option(help="µGraphs in the first round of tuning.")] = 32,
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes that compile, a row; by default the cores are shared.", show_default=False),
    ] = None,
    reuse: Annotated[
        Path | None, typer.Option(metavar="ROWS.jsonl", help="Time the choices of these rows instead of tuning.")
    ] = None,
    only_report: Annotated[
        bool, typer.Option("--report", help="Measure nothing: table and picture of the rows there are.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    as_json: JsonOption = False,
) -> Job:
    """Tune each workload on this GPU and time it against eager and compiled PyTorch and its fused library calls."""

    def job() -> int:
        from mirage_eg.bench.gpu import BATCHES, Failure, rows_path, run_rows, summarize
        from mirage_eg.bench.gpu_chart import picture
        from mirage_eg.bench.gpu_row import RowOptions

        names, batches = workloads or list(PAPER), batch or list(BATCHES)
        for name in names:
            if name not in WORKLOADS:
                raise OptionError(f"workload: got {name!r}, wanted one of {', '.join(WORKLOADS)}")
        if peers not in _PEERS:
            raise OptionError(f"--peers: got {peers!r}, wanted one of {', '.join(_PEERS)}")
        least: list[tuple[str, float, float]] = [
            ("--parallel", parallel, 1),
            ("--structures", structures, 1),
            ("--seed", seed, 0),
        ]
        least += [("--batch", size, 1) for size in batches] + ([("--jobs", jobs, 1)] if jobs is not None else [])
        least += [("--seconds", seconds, 0), ("--row-seconds", row_seconds, 0)]
        for option, value, smallest in least:
            if not smallest <= value < float("inf"):
                raise OptionError(f"{option}: got {value}, wanted {smallest} or more")
        if reuse is not None and not reuse.is_file():
            raise OptionError(f"--reuse: no such file: {reuse}")
        check_writable(out)
        failures: list[Failure] = []
        if not only_report:
            options = RowOptions(peers, None if reuse is None else str(reuse), seconds, structures, jobs=jobs, seed=seed)
            wanted = [(name, size) for size in batches for name in names]
            with progress() as observer:
                failures = run_rows(
                    wanted,
                    out,
                    options,
                    parallel=parallel,
                    row_seconds=row_seconds,
                    on_progress=lambda done, total, text: observer("rows", done, total, text),
                )
        rows = list(summarize(rows_path(out)))
        if rows:
            write_atomically(out / "gpu.svg", picture(rows, "How many times as fast as the best peer"))
        if as_json:
            print(json_line({"rows": [asdict(row) for row in rows], "failures": [asdict(failure) for failure in failures]}))
        else:
            if rows:
                console().print(_table(rows))
            for failure in failures:
                console().print(f"{failure.workload} b{failure.batch}: {failure.reason}", markup=False, highlight=False)
            console().print(f"lines: {rows_path(out)}", markup=False, highlight=False, soft_wrap=True)
        return 1 if failures else 0

    return job


def _table(rows: Sequence["Summary"]) -> Table:
    from mirage_eg.bench.gpu import geometric_mean

    table = Table(title="µs, warm / cold; ratios above 1: ours is faster", title_justify="left")
    for column in ("workload", "batch", "ours", "best peer", "", "ratio warm", "ratio cold", "floor", "floor / ours"):
        table.add_column(column, justify="left" if column in ("workload", "") else "right")
    for row in rows:
        table.add_row(
            row.workload,
            str(row.batch),
            f"{row.warm_us:.1f} / {row.cold_us:.1f}",
            "–" if row.peer_warm_us is None else f"{row.peer_warm_us:.1f} / {row.peer_cold_us:.1f}",
            row.peer or "",
            *("–" if ratio is None else f"{ratio:.2f}" for ratio in (row.warm_ratio, row.cold_ratio)),
            f"{row.floor_us:.1f}",
            f"{row.floor_ratio:.2f}",
        )
    groups = {row.workload: [other for other in rows if other.workload == row.workload] for row in rows}
    for name, group in (groups | {"all": rows}).items():
        means = []
        for ratios in ([row.warm_ratio for row in group], [row.cold_ratio for row in group]):
            known = [ratio for ratio in ratios if ratio is not None]
            means.append(f"{geometric_mean(known):.2f}" if known else "–")
        table.add_row(f"geometric mean, {name}", "", "", "", "", *means, "", "")
    return table
