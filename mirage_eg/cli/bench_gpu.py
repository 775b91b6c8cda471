"""`mirage-eg bench gpu`: our kernels and their baselines on the current GPU, row by row, as a table, lines and a picture."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.arguments import ProgramsArgument, load_programs, with_options
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_line, print_table, progress
from mirage_eg.frontend.load import BUILT_IN
from mirage_eg.frontend.workloads import PAPER
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.gpu_options import GpuOptions
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.lab.bench.gpu import Summary


_DEFAULTS = GpuOptions()


@with_options(GpuOptions)
@as_job
def bench_gpu(
    programs: ProgramsArgument = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Batch sizes; default 1, 8 and 16 for workloads, 1 for files.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of lines and picture; earlier rows in it count too.")] = Path(
        "mirage_bench"
    ),
    options: GpuOptions = _DEFAULTS,
    only_report: Annotated[
        bool, typer.Option("--report", help="Measure nothing: table and picture of the rows there are.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Tune each program on this GPU and time it against eager and compiled PyTorch and its fused library calls."""

    from mirage_eg.lab.bench.gpu import BATCHES, Failure, ratio_chart, rows_path, run_rows, summarize

    batches = batch or list(BATCHES)
    if any(size < 1 for size in batches):
        raise OptionError(f"--batch: got {min(batches)}, wanted 1 or more")
    arguments = [*dict.fromkeys(programs or PAPER)]
    wanted = [(it, size) for size in batches for it in arguments if batch or it in BUILT_IN or size == batches[0]]
    for size in batches:  # refuses before any work
        load_programs([argument for argument, its in wanted if its == size], PAPER, size)
    if options.reuse is not None and not Path(options.reuse).is_file():
        raise OptionError(f"--reuse: no such file: {options.reuse}")
    check_writable(out)
    failures: list[Failure] = []
    if not only_report:
        with progress() as observer:
            report = partial(observer, "rows")
            failures = run_rows(wanted, out, options, on_progress=report)
    rows = list(summarize(rows_path(out)))
    if rows:
        write_atomically(out / "gpu.svg", ratio_chart(rows, "How many times as fast as the best baseline"))
    if as_json:
        print(json_line({"rows": [asdict(row) for row in rows], "failures": [asdict(failure) for failure in failures]}))
    else:
        if rows:
            _print_table(rows)
        for failure in failures:
            print_line(f"{failure.workload} b{failure.batch}: {failure.reason}")
        print_line(f"lines: {rows_path(out)}")
    return 1 if failures else 0


def _print_table(rows: Sequence["Summary"]) -> None:
    from mirage_eg.lab.bench.gpu import geometric_mean

    lines = []
    for row in rows:
        baseline = "–" if row.baseline_warm_us is None else f"{row.baseline_warm_us:.1f} / {row.baseline_cold_us:.1f}"
        ratios = ("–" if ratio is None else f"{ratio:.2f}" for ratio in (row.warm_ratio, row.cold_ratio))
        times = (f"{row.warm_us:.1f} / {row.cold_us:.1f}", baseline, row.baseline or "")
        bound = (f"{row.lower_bound_us:.1f}", f"{row.lower_bound_ratio:.2f}")
        lines.append((row.workload, str(row.batch), *times, *ratios, *bound))
    groups = {row.workload: [other for other in rows if other.workload == row.workload] for row in rows}
    for name, group in (groups | {"all": rows}).items():
        means = []
        for all_ratios in ([row.warm_ratio for row in group], [row.cold_ratio for row in group]):
            known = [ratio for ratio in all_ratios if ratio is not None]
            means.append(f"{geometric_mean(known):.2f}" if known else "–")
        lines.append((f"geometric mean, {name}", "", "", "", "", *means, "", ""))
    head = ("workload", "batch", "ours", "best baseline", "", "ratio warm", "ratio cold", "lower bound", "bound / ours")
    print_table(head, lines, "µs, warm / cold; ratios above 1: ours is faster", left=("workload", ""))
