"""`mirage-eg bench kernelbench`: which problems of a KernelBench checkout import and are right; on GPUs, how fast they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.arguments import with_options
from mirage_eg.cli.terminal import append_line, as_job, json_line, print_table, progress
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.gpu_options import KernelBenchOptions

if TYPE_CHECKING:
    from mirage_eg.lab.bench.kernelbench import Problem
    from mirage_eg.lab.bench.kernelbench_gpu import GpuRow, Score

_DEFAULTS = KernelBenchOptions()
_SECONDS = {"cpu": 120.0, "cuda": 90.0}


@with_options(KernelBenchOptions, "dtype", "budget", "tune", "min_ops", "baselines", "parallel")
@as_job
def bench_kernelbench(
    problems: Annotated[
        list[str] | None, typer.Argument(metavar="PROBLEM…", help="As level1, level1/19 or level1/19_ReLU; all without.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="PATH", envvar="KERNELBENCH_DIR", help="A checkout, with KernelBench/level1/*.py."),
    ] = None,
    listed: Annotated[
        Path | None, typer.Option("--problems", metavar="FILE", help="A file with more of them, one a line.")
    ] = None,
    third: Annotated[
        bool, typer.Option("--third", help="Leave out a third of the problems, which is kept for judging.")
    ] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="Smaller sizes, which a CPU computes in seconds.")] = False,
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="Import and compare on the CPU, or also time on all GPUs.")
    ] = "cpu",
    seconds: Annotated[
        float | None,
        typer.Option(help="Limit of a problem: processor time on a CPU, all of it on GPUs.", show_default="120, on GPUs 90"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Append one JSON line a problem; problems that it has are not run again."),
    ] = None,
    options: KernelBenchOptions = _DEFAULTS,
) -> int:
    """Import the problems of a KernelBench checkout, and compare each imported program with its model in float64.

    With --device cuda each problem runs at its own sizes through torch.compile with our backend, in a process of its own:
    KernelBench's correctness test and ours, times against eager torch, torch.compile and max-autotune
    without and with CUDA graphs, and KernelBench's fast_p.
    """
    from mirage_eg.frontend.torch_export import torch_module

    torch_module()
    from mirage_eg.lab.bench.kernelbench import find_problems
    from mirage_eg.lab.bench.kernelbench_gpu import in_two_thirds

    if folder is None:
        raise OptionError("--dir: wanted the folder of a KernelBench checkout, here or in KERNELBENCH_DIR")
    if device not in _SECONDS:
        raise OptionError(f"--device: got {device!r}, wanted cpu or cuda")
    if shrink and device == "cuda":
        raise OptionError("--shrink: on GPUs problems have their own sizes; leave it out, or --device")
    limit = _SECONDS[device] if seconds is None else seconds
    if not 0 < limit < float("inf"):
        raise OptionError(f"--seconds: got {limit}, wanted more than 0")
    found = find_problems(folder, [*(problems or ()), *_lines(listed)])
    found = [problem for problem in found if not third or in_two_thirds(problem)]
    return _on_cpu(found, shrink, limit, out) if device == "cpu" else _on_gpus(found, options, limit, out)


def _lines(path: Path | None) -> list[str]:
    """The first word of each line of a file that has one."""
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--problems: {path}: {error.strerror or error}") from None
    return [words[0] for line in text.splitlines() if (words := line.split("#")[0].split())]


def _on_cpu(found: "Sequence[Problem]", shrink: bool, seconds: float, out: Path | None) -> int:
    from mirage_eg.lab.bench.kernelbench import Import, import_rows, summary
    from mirage_eg.lab.bench.kernelbench_gpu import without_rows

    found = without_rows(found, out)
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
    print_table(head, lines)
    return int(any(row.result in (Import.WRONG, Import.FAILED) for row in rows))


def _on_gpus(found: "Sequence[Problem]", options: KernelBenchOptions, seconds: float, out: Path | None) -> int:
    from mirage_eg.lab.bench.gpu_processes import visible_gpus
    from mirage_eg.lab.bench.kernelbench_gpu import FAST, GpuRow, gpu_rows, run_problems, scores, without_rows

    if out is None:
        raise OptionError("--out: wanted a file for the rows, from which the next run continues")
    waiting = without_rows(found, out, options.dtype)
    done = 0
    with progress() as observe:

        def report(row: GpuRow) -> None:
            nonlocal done
            done += 1
            print(_line(row), flush=True)
            observe("problems", done, len(waiting), row.problem)

        run_problems(waiting, options, visible_gpus() if waiting else [], seconds, out, report)
    rows = gpu_rows(out, found, options.dtype)
    head = ("level", "against", "", "problems", "right", *(f"fast_{p:g}" for p in FAST), "mean", "< 0.98", "≥ 2")
    print_table(head, map(_cells, scores(rows)))
    return int(any(not row.right for row in rows))


def _cells(score: "Score") -> tuple[str, ...]:
    counts = (str(score.problems), str(score.right), *(f"{share:.2f}" for share in score.fast))
    mean = "–" if score.mean is None else f"{score.mean:.2f}"
    kind = "CUDA graphs" if score.graphs else "calls"
    return score.level, score.against, kind, *counts, mean, str(score.slower), str(score.twice)


def _line(row: "GpuRow") -> str:
    """A problem in one line: both tests, the time of a call and of each baseline's, seconds."""
    tests = {True: "right", False: "wrong", None: "unknown"}
    error = "" if row.error is None else f", error {row.error:.1e} of {row.allowed:.1e}"
    times = ", ".join(f"{name} {us:.1f} ({row.graph_us.get(name, float('nan')):.1f})" for name, us in row.us.items())
    speedups = [row.speedup(graphs) for graphs in (False, True)]
    ratios = " (".join("–" if it is None else f"{it:.2f}" for it in speedups)
    first = ", ".join(f"{name} {seconds:.0f}" for name, seconds in row.call_seconds.items())
    return (
        f"{row.problem}: theirs {tests[row.theirs]}, ours {'right' if row.ours_right else 'wrong'}{error}; "
        f"{row.used} of {row.segments} segments; µs {times or '–'}; best / ours {ratios}); first calls s {first}; "
        f"{row.seconds:.0f} s{'; ' + row.reason[-300:] if row.reason else ''}"
    )
