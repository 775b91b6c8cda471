"""`mirage-eg bench models`: models by eager torch, torch.compile and our backend, with the metrics of PyTorch's dashboard."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.terminal import append_line, as_job, json_line, print_line, print_table, progress
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.lab.bench.model_row_records import ModelJob, ModelRow


@as_job
def bench_models(
    suite: Annotated[str, typer.Option(help="decode, huggingface, timm, torchbench, layers or quantized.")] = "layers",
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Models, or beginnings of their names; all without.")
    ] = None,
    modes: Annotated[
        str, typer.Option(metavar="A,B", help="Contestants; ours:MODE has Inductor's MODE for the rest. eager is always there.")
    ] = "eager,default,max-autotune,ours",
    device: Annotated[str | None, typer.Option(help="cuda or cpu.", show_default="cuda where there is a GPU")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float16, bfloat16 or float32.", show_default="the suite's; float32 on a CPU")
    ] = None,
    shrink: Annotated[bool, typer.Option("--shrink", help="Small models, for accuracy alone.")] = False,
    budget: Annotated[float, typer.Option(help="Seconds of a first call, shared by the segments of a model.")] = 60.0,
    tune: Annotated[float, typer.Option(help="Most seconds of tuning for a distinct segment.")] = 0.0,
    seconds: Annotated[float, typer.Option(help="Seconds after which a model is given up.")] = 900.0,
    once: Annotated[
        bool, typer.Option("--once", help="Compile with empty caches alone, not a second time with full ones.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Append a JSON line a model; what has a line is not measured again."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what has a line, too.")] = False,
    page: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the tables of all lines there.")] = None,
    only_report: Annotated[bool, typer.Option("--report", help="Measure nothing: the tables of the lines there are.")] = False,
) -> int:
    """Time models against eager torch and torch.compile: accuracy, speedup, compilation, memory, segments, errors.

    Models have random weights and need no downloads. Each has a process and a time limit of its own, and the visible GPUs
    work side by side. Times are of calls and of CUDA graphs, with the inputs copied in. On a CPU nothing is timed: kernels
    run in Triton's interpreter.
    """
    from mirage_eg.frontend.torch_export import torch_module

    torch_module()
    from mirage_eg.lab.bench.model_row_records import read_rows
    from mirage_eg.lab.bench.models import measure_models
    from mirage_eg.lab.bench.models_page import page as page_of
    from mirage_eg.lab.bench.models_page import tables

    for path in (out, page):
        if path is not None:
            check_writable(path.parent)
    before = read_rows(out) if out is not None else []
    rows = {row.job: row for row in before}
    if not only_report:
        if not budget > 0 or tune < 0 or not 0 < seconds < float("inf"):
            raise OptionError(
                f"got --budget {budget}, --tune {tune} and --seconds {seconds}, wanted seconds above 0; tune from 0"
            )
        jobs = _jobs(suite, _split(models), _split(modes), device, dtype, shrink, budget, tune)
        rows = {asked: rows[asked] for asked in jobs if asked in rows and not again}

        def keep(row: "ModelRow") -> None:
            rows[row.job] = row
            if out is not None:
                append_line(out, json_line(row))

        with progress() as observe:
            missing = [asked for asked in jobs if asked not in rows]
            measure_models(missing, seconds, keep, partial(observe, "models"), once=once)
        rows = {asked: rows[asked] for asked in jobs}
    for title, *both in tables(rows.values()):
        print_line(title)
        for head, lines in both:
            print_table(head, lines)
    if page is not None:
        write_atomically(page, page_of(read_rows(out) if out is not None else rows.values()))
    wrong = any(row.problem or not all(it.passes for it in row.contestants.values()) for row in rows.values())
    return int(wrong or any(sum(row.unexpected.values()) for row in rows.values()))


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _jobs(
    suite: str,
    names: list[str],
    modes: list[str],
    device: str | None,
    dtype: str | None,
    small: bool,
    budget: float,
    tune: float,
) -> "list[ModelJob]":
    from mirage_eg.backends.measure.timing import gpu_available
    from mirage_eg.lab.bench.model_row_records import EAGER, MODES, OURS, ModelJob
    from mirage_eg.lab.bench.model_suites import DTYPES, SUITES, chosen_models, with_package
    from mirage_eg.torch_compile.settings import settings_of

    if suite not in SUITES:
        raise OptionError(f"--suite: got {suite!r}, wanted one of {', '.join(SUITES)}")
    found, lines = with_package(suite, chosen_models(suite, names))
    for mode in modes:
        name, colon, of_rest = mode.partition(":")
        if name not in MODES or (colon and name != OURS):
            raise OptionError(f"--modes: got {mode!r}, wanted one of {', '.join(MODES)}, {OURS}:MODE")
        settings_of({"mode": of_rest or None})
    chosen = device or ("cuda" if gpu_available() else "cpu")
    if chosen not in ("cuda", "cpu") or (chosen == "cuda" and not gpu_available()):
        raise OptionError(f"--device: got {chosen!r}, wanted cpu, or cuda where torch finds a GPU")
    kind = dtype or (DTYPES[suite] if chosen == "cuda" else "float32")
    if kind not in ("float16", "bfloat16", "float32"):
        raise OptionError(f"--dtype: got {kind!r}, wanted float16, bfloat16 or float32")
    if chosen == "cpu" and not small:
        raise OptionError("--device cpu: whole models take hours in Triton's interpreter; try: --shrink")
    for line in lines:
        print(line)
    wanted = tuple(dict.fromkeys([EAGER, *modes]))
    return [ModelJob(suite, model, wanted, chosen, kind, small, budget, tune) for model in found]
