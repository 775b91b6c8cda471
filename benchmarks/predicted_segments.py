"""Predicted times of KernelBench's problems beside the measured ones of the gate: a JSON line for each problem of one segment.

    python benchmarks/predicted_segments.py --dir KernelBench [--out FILE.jsonl] [--budget 100] [PROBLEM…]

A problem is imported at its own size, without values, and searched as a graph of torch.compile is, without a GPU: weights may
change. The measured times are those of `docs/measurements/kernelbench_h200.jsonl`, of the commit that brought the line there.
`docs/build.py` makes a table of the lines. Names are as level2/85; without names all are run that FILE has no line of today's.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.frontend.torch_export import import_program
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.lab.bench.gpu_row_records import lines
from mirage_eg.lab.bench.kernelbench import find_problems
from mirage_eg.pipeline.optimize import optimize_wanted
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Wanted

MEASUREMENTS = Path(__file__).parents[1] / "docs" / "measurements"
ROWS = MEASUREMENTS / "kernelbench_h200.jsonl"
_COLD = re.compile(r"cold ([\d.]+), ([\d.]+)")


@dataclass(frozen=True)
class Line:
    """A segment's predicted and measured microseconds, Inductor's of the same run, the days of both, and its kernels.

    `cut`: the budget ended the search.
    """

    problem: str
    dtype: str
    predicted_us: float
    measured_us: float
    inductor_us: float
    predicted: str
    measured: str
    kernels: int
    cut: bool


@dataclass(frozen=True)
class Measured:
    """The gate's times of a problem of one segment."""

    problem: str
    dtype: str
    us: float
    inductor_us: float
    day: str


def measured() -> Iterator[Measured]:
    """The problems of one segment that the gate timed, the newest first."""
    blame = subprocess.run(
        ["git", "blame", "--date=short", "-c", ROWS.name], cwd=ROWS.parent, capture_output=True, text=True, check=True
    )
    days = [re.search(r"\d{4}-\d\d-\d\d", line.partition("{")[0]) for line in blame.stdout.splitlines()]
    found = []
    for line, day in zip(lines(ROWS), days, strict=True):
        times = [it for text in line["decisions"] for it in _COLD.findall(text)]
        if line["segments"] == 1 and len(times) == 1 and day is not None:
            us, inductor_us = map(float, times[0])
            found.append(Measured(line["problem"], line["dtype"], us, inductor_us, day.group()))
    yield from sorted(found, key=lambda it: it.day, reverse=True)


def program_of(path: Path, dtype: Any) -> Graph | None:
    """The only segment of a problem at its own size, whose weights may change; None where it has several."""
    space: dict[str, Any] = {"__name__": path.stem}
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
            model = space["Model"](*space["get_init_inputs"]()).requires_grad_(False)
            given = [
                it.to(dtype) if isinstance(it, torch.Tensor) and it.is_floating_point() else it for it in space["get_inputs"]()
            ]
            exported = torch.export.export(model, tuple(given))
        found = import_program(exported).segments  # constants have numbers outside
    finally:
        torch.set_default_dtype(torch.float32)
    if len(found) != 1:
        return None
    program = found[0].program
    inputs = [item for item in program.nodes if item.op == "input"]
    return with_attributes(program, [{} if item["dtype"] == "bool" else {"weight": None} for item in inputs])


def main() -> int:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=MEASUREMENTS / "predicted_segments.jsonl")
    parser.add_argument("--budget", type=float, default=100.0)
    parser.add_argument("problems", nargs="*")
    given = parser.parse_args()
    paths = {problem.name: problem.path for problem in find_problems(given.dir)}
    today = date.today().isoformat()
    kept = [Line(**it) for it in lines(given.out)] if given.out.exists() else []
    done = {(it.problem, it.dtype) for it in kept if it.predicted == today}
    for it in measured():
        named = any(it.problem.startswith(f"{name}_") for name in given.problems)
        if (given.problems and not named) or (not given.problems and (it.problem, it.dtype) in done):
            continue
        if (program := program_of(paths[it.problem], getattr(torch, it.dtype))) is None:
            continue
        options = Options(gpu="h200", budget=given.budget, jobs=1, top=1, device="cpu")
        result = optimize_wanted(it.problem, program, options, Wanted(diagnosis=False, proofs=False, others=False))
        best = result.candidates[0]
        us, kernels = round(best.predicted_us, 1), len(launches_of(best.graph).kernels)
        line = Line(it.problem, it.dtype, us, it.us, it.inductor_us, today, it.day, kernels, result.cut)
        kept = [old for old in kept if (old.problem, old.dtype) != (line.problem, line.dtype)] + [line]
        given.out.write_text("".join(json.dumps(asdict(one)) + "\n" for one in kept), encoding="utf-8")
        print(f"{line.problem:60} {line.dtype} predicted {us:8.1f} measured {it.us:8.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
