"""`bench kernelbench --device cuda`: KernelBench's problems at their own sizes against eager torch and torch.compile.

Each problem runs in a process of its own with a limit of time (`kernelbench_gpu_row`), one or several at a time on each GPU.
Its row is kept stage by stage: a problem that is stopped has what it measured until then. Rows of an earlier run count, and
their problems do not run again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mirage_eg.lab.bench.gpu import geometric_mean
from mirage_eg.lab.bench.gpu_processes import End, run_on_gpus
from mirage_eg.lab.bench.gpu_row_records import lines
from mirage_eg.lab.bench.kernelbench import Problem
from mirage_eg.optimizer.tuning_database import append
from mirage_eg.pipeline.run.gpu_options import KernelBenchOptions

OURS, EAGER = "mirage_eg", "eager"
BASELINES: Mapping[str, Mapping[str, Any]] = {EAGER: {}, "compile": {}, "max-autotune": {"mode": "max-autotune-no-cudagraphs"}}
FAST = (0.0, 1.0, 1.5, 2.0)  # the p of fast_p
NO_REFERENCE = "torch's own result is no measure"
MOST = 1e30  # an error that is not finite, in JSON


class Stage(StrEnum):
    """The stages of a problem in their order, each by what is in the row after it."""

    STARTED = "started"
    EAGER = "eager"
    OURS = "ours"
    COMPILE = "compile"
    CHECKED = "checked"
    TIMED = "timed"
    DONE = "done"  # with max-autotune


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One problem on a GPU: the last stage that ended, and what it found; `reason` says why not all did.

    `theirs`: KernelBench's test passes. `error` is ours relative to the largest element, `torch_error` eager's, against
    `reference` ("float64", or eager where memory does not suffice; then `torch_error` is that of torch.compile). `us` are
    median µs of a call with cold caches, `graph_us` those of a CUDA graph. `call_seconds` are those of first calls,
    `stage_seconds` those from the beginning to the end of each stage, `problems` the reasons why a baseline or the float64
    copy fails.
    """

    problem: str
    dtype: str
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    stage: str = Stage.STARTED
    reason: str = ""
    theirs: bool | None = None
    reference: str = ""
    error: float | None = None
    torch_error: float | None = None
    allowed: float | None = None
    segments: int = 0
    used: int = 0
    decisions: tuple[str, ...] = ()
    call_seconds: Mapping[str, float] = field(default_factory=dict)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    us: Mapping[str, float] = field(default_factory=dict)
    graph_us: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ours_right(self) -> bool:
        """Whether our own test passes, where it can tell."""
        within = self.error is not None and self.allowed is not None and self.error <= self.allowed
        return within or self.reference == NO_REFERENCE

    @property
    def right(self) -> bool:
        """Whether both tests pass."""
        return bool(self.theirs) and self.ours_right

    def speedup(self, graphs: bool, baseline: str | None = None) -> float | None:
        """The time of a baseline, or of the fastest, over ours."""
        times = self.graph_us if graphs else self.us
        others = [us for name, us in times.items() if name != OURS and baseline in (None, name)]
        return min(others) / times[OURS] if others and OURS in times else None


def in_two_thirds(problem: Problem) -> bool:
    """Whether a problem is among the two thirds that may be looked at; the others are for judging."""
    return int(sha256(problem.name.encode()).hexdigest(), 16) % 3 != 0


def without_rows(problems: Sequence[Problem], path: Path | None, dtype: str | None = None) -> list[Problem]:
    """The problems that the file of an earlier run has no row of, in that type."""
    if path is None:
        return [*problems]
    known = {line["problem"] for line in lines(path) if line.get("dtype") == dtype}
    return [problem for problem in problems if problem.name not in known]


def gpu_rows(path: Path, problems: Iterable[Problem], dtype: str) -> list[GpuRow]:
    """The newest row of each problem in the file, in the order of the problems."""
    found = {line["problem"]: row_of(line) for line in lines(path) if line.get("dtype") == dtype}
    return [found[problem.name] for problem in problems if problem.name in found]


def row_of(line: Mapping[str, Any]) -> GpuRow:
    """The row of a line; fields that are gone are left out."""
    names = {it.name for it in fields(GpuRow)}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in line.items() if name in names
    }
    return GpuRow(**values)


def run_problems(
    problems: Sequence[Problem],
    options: KernelBenchOptions,
    devices: Sequence[str],
    seconds: float,
    out: Path,
    on_row: Callable[[GpuRow], None],
) -> None:
    """Run each problem on one of the GPUs, `options.parallel` at a time on each and at most for `seconds`, and append its row
    to the file. One that lacks memory, of which others have some, runs again once."""
    again: set[str] = set()
    with TemporaryDirectory(prefix="mirage_eg-kernelbench-") as folder:

        def stages(problem: Problem) -> Path:
            return Path(folder) / f"{problem.name.replace('/', '-')}.jsonl"

        def command(problem: Problem) -> list[str]:
            return [str(problem.path), problem.name, str(stages(problem)), json.dumps(asdict(options))]

        def ended(problem: Problem, end: End) -> bool:
            row = GpuRow(problem=problem.name, dtype=options.dtype)
            for line in lines(stages(problem)):
                row = row_of(line)
            if end.code != 0:
                why = f"stopped after {seconds:g} s" if end.late else f"ended with code {end.code}: {end.said}"
                row = replace(row, reason=f"{why}, after stage {row.stage}" if end.late else why)
            if "memory" in " ".join((row.reason, *row.decisions)) and options.parallel > 1 and problem.name not in again:
                again.add(problem.name)
                return True
            row = replace(row, seconds=end.seconds)
            append(out, [asdict(row)])
            on_row(row)
            return False

        places, module = [*devices] * options.parallel, "mirage_eg.lab.bench.kernelbench_gpu_row"
        run_on_gpus(problems, command, places, seconds, ended, own_cores=True, ahead=("-m", module))


@dataclass(frozen=True, slots=True)
class Score:
    """KernelBench's figures of a level: `fast` has the share of problems that are right and more than p times as fast.

    `mean` is the geometric mean of the speedups of right problems; `slower` counts those below 0.98, `twice` those of 2 at
    least.
    """

    level: str
    against: str
    graphs: bool
    problems: int
    right: int
    fast: tuple[float, ...]
    mean: float | None
    slower: int
    twice: int


def scores(rows: Sequence[GpuRow]) -> list[Score]:
    """The scores of each level and of all, against eager and the fastest baseline, without and with CUDA graphs."""
    levels = sorted({row.problem.partition("/")[0] for row in rows})
    found = []
    for level in (*levels, "all"):
        mine = [row for row in rows if level in ("all", row.problem.partition("/")[0])]
        for against in (EAGER, "best"):
            for graphs in (False, True):
                found.append(_score(mine, level, against, graphs))
    return found


def _score(rows: Sequence[GpuRow], level: str, against: str, graphs: bool) -> Score:
    right = [row for row in rows if row.right]
    speedups = [row.speedup(graphs, None if against == "best" else against) for row in right]
    known = [speedup for speedup in speedups if speedup is not None]
    return Score(
        level,
        against,
        graphs,
        len(rows),
        len(right),
        tuple(sum(speedup > p for speedup in known) / len(rows) for p in FAST),
        geometric_mean(known) if known else None,
        sum(speedup < 0.98 for speedup in known),
        sum(speedup >= 2 for speedup in known),
    )
