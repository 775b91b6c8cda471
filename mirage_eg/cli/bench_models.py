"""`mirage-eg bench models`: transformer layers by the backend of torch.compile, eager torch and Inductor."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mirage_eg.cli.bench_verify import append_line
from mirage_eg.cli.terminal import Job, console, json_line, progress
from mirage_eg.ir.errors import OptionError


def bench_models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Beginnings of rows, such as llama or bert-base; all without.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds of a first call, shared by the segments of a row.")] = 60.0,
    tune: Annotated[float, typer.Option(help="Seconds of tuning for each distinct segment.")] = 0.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Append one JSON line a row.")] = None,
) -> Job:
    """Time layers of published shapes against eager torch, torch.compile and max-autotune, in CUDA graphs, warm and cold.

    A second table has each segment: the gate's decision, and times of our kernels and of Inductor's code for it. Without a GPU
    nothing is timed: a row says how many segments run our kernels, in Triton's interpreter, and their error.
    """

    def job() -> int:
        if not budget > 0 or tune < 0:
            raise OptionError(f"got --budget {budget} and --tune {tune}, wanted seconds above 0, and seconds")
        try:
            from mirage_eg.cli.segment_table import kernel_lines, segment_table
            from mirage_eg.lab.bench.models import BASELINES, ModelResult, chosen_rows, model_results
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise OptionError("torch is not installed; try: pip install 'mirage-eg[torch]'") from None

        chosen = chosen_rows(names or ())
        table = Table("model", "segments used", "error", "compile s", "ours µs (cold)", *BASELINES, "best baseline / ours")
        results: list[ModelResult] = []
        with progress() as observe:
            observe("models", 0, len(chosen), chosen[0])
            for done, row in enumerate(model_results(chosen, budget, tune), 1):
                results.append(row)
                if out is not None:
                    append_line(out, json_line(row))
                times = [f"{row.warm_us[it]:.1f} ({row.cold_us[it]:.1f})" for it in row.warm_us] or ["–"] * (1 + len(BASELINES))
                speedup = "–" if row.speedup is None else f"{row.speedup:.2f}"
                used = f"{row.used} of {row.segments}"
                table.add_row(row.name, used, f"{row.error:.1e}", f"{row.compile_seconds:.1f}", *times, speedup)
                observe("models", done, len(chosen), row.name)
        console().print(table)
        console().print(segment_table(results))
        for line in kernel_lines(results):
            print(line)
        return 0

    return job
