"""One problem of KernelBench on a GPU, in a process of its own; its row is written after each stage.

    python -m mirage_eg.lab.bench.kernelbench_gpu_row [PROBLEM.py NAME STAGES.jsonl [OPTIONS in JSON]]

Without arguments it imports what a problem needs, and waits for them as a line of JSON.

As KernelBench does: seeds, models in train mode, its test (5 random inputs, absolute and relative tolerance) and its times (one
call at a time, with the L2 cache flushed). Inputs are drawn on the GPU, integers keep their type, and times are medians of
alternating rounds. Besides, errors are relative to the size of the result, on their inputs and on normal ones; torch's own is
with TF32 where its settings allow it, as Inductor's layouts of convolutions have it and eager's may not.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import triton

from mirage_eg.backends.measure.gpu_turn import autotune_in_turn, gpu_turn
from mirage_eg.backends.measure.tf32 import RoundedOperands, rounded_operands
from mirage_eg.backends.measure.timing import captured, free_cached_memory, gpu_available, timing_stream
from mirage_eg.lab.bench.kernelbench import FOREIGN_ERRORS, TOLERANCE, in_float64, is_float
from mirage_eg.lab.bench.kernelbench_gpu import BASELINES, EAGER, MOST, NO_REFERENCE, OURS, GpuRow, Stage
from mirage_eg.lab.bench.model_errors import largest_error, tensors_of
from mirage_eg.lab.bench.shrinking import run_source
from mirage_eg.optimizer.tuning_database import append
from mirage_eg.pipeline.run.gpu_options import KernelBenchOptions

SEED, TRIALS = 42, 5  # KernelBench's
THEIR_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}  # absolute and relative
TIMED_SECONDS = 0.2  # of each contestant and kind of call
CALLS = 8, 100  # timed, at least and at most
ROUNDS = 4
FLUSHED_BYTES = 256 << 20
MOST_OF_TORCH = 0.25  # the largest error of torch's own result that is a measure of ours

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A problem's model on its device, and its inputs by seed."""

    model: Any
    inputs: Callable[[int], list[Any]]
    dtype: Any
    device: str


def load(path: Path, options: KernelBenchOptions) -> Loaded:
    """The model and inputs of a problem; weights and inputs are drawn on the device."""
    module = run_source(path.read_text(encoding="utf-8"), str(path))
    dtype = getattr(torch, options.dtype)

    def drawn(make: Callable[[], Any], seed: int) -> Any:
        torch.manual_seed(seed)
        with torch.device(options.device):
            return make()

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(options.device, dtype if value.is_floating_point() else None)

    given = drawn(module.get_init_inputs, SEED)
    model = drawn(lambda: module.Model(**given) if isinstance(given, dict) else module.Model(*given), SEED)

    def inputs(seed: int) -> list[Any]:
        return [moved(value) for value in drawn(module.get_inputs, seed)]

    return Loaded(model.to(options.device, dtype), inputs, dtype, options.device)


def run_problem(path: Path, name: str, options: KernelBenchOptions) -> Iterator[GpuRow]:
    """The row of a problem after each stage."""
    from mirage_eg.torch_compile.backend import backend
    from mirage_eg.torch_compile.records import Compilation, graph_records

    on_gpu = options.device == "cuda"
    if on_gpu:
        autotune_in_turn()
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    row = GpuRow(problem=name, dtype=options.dtype, device=device, versions=_versions())
    yield row
    loaded = load(path, options)
    contest = Contestants(loaded, {EAGER: loaded.model})
    turn = gpu_turn if on_gpu else nullcontext
    with turn():  # else it would be in the times of others
        row = replace(row, stage=Stage.EAGER, call_seconds=contest.called(EAGER))
    yield row
    settings = {name: getattr(options, name) for name in ("budget", "tune", "min_ops")} | {"not_finite": "lose"}
    settings |= {"search": "always", "gate": "time" if on_gpu else "cost"}
    contest.runs[OURS] = torch.compile(loaded.model, backend=backend, options=settings, dynamic=False)
    seconds = contest.called(OURS)
    compilation = Compilation(graph_records())
    segments = [segment for graph in compilation.graphs for segment in graph.segments]
    whole = [graph.whole for graph in compilation.graphs]
    decisions = [f"{segment.ops} ops: {segment.decision}: {segment.reason}"[:300] for segment in segments]
    row = replace(
        row,
        stage=Stage.OURS,
        call_seconds=seconds,
        segments=len(segments),
        used=compilation.used,
        decisions=(*decisions, *(f"graph: {reason}"[:300] for reason in (*compilation.fallbacks, *whole) if reason)),
    )
    yield row
    row = replace(contest.with_baseline(row, "compile"), stage=Stage.COMPILE)
    yield row
    with turn():
        row = replace(with_checks(row, contest), stage=Stage.CHECKED)
    yield row
    if on_gpu:
        row = replace(contest.timed(row), stage=Stage.TIMED)
        yield row
    if on_gpu and options.baselines == "all":
        row = contest.timed(contest.with_baseline(row, "max-autotune"))
    yield replace(row, stage=Stage.DONE)


@dataclass(slots=True)
class Contestants:
    """The contestants of a problem by name, and what their first calls took."""

    loaded: Loaded
    runs: dict[str, Call]
    first: dict[str, float] = field(default_factory=dict)

    def called(self, name: str) -> dict[str, float]:
        """The seconds of first calls, after that of one more contestant."""
        inputs, started = self.loaded.inputs(SEED), perf_counter()
        with torch.no_grad():
            self.runs[name](*inputs)
        if self.loaded.device == "cuda":
            torch.cuda.synchronize()
        self.first[name] = perf_counter() - started
        free_cached_memory()
        return dict(self.first)

    def with_baseline(self, row: GpuRow, name: str) -> GpuRow:
        """The row with one more baseline, or the reason why torch does not compile it."""
        self.runs[name] = torch.compile(self.loaded.model, dynamic=False, **BASELINES[name])
        try:
            return replace(row, call_seconds=self.called(name))
        except FOREIGN_ERRORS as error:
            del self.runs[name]
            return replace(row, problems={**row.problems, name: " ".join(str(error).split())[:300]})

    def timed(self, row: GpuRow) -> GpuRow:
        """The row with times of all contestants."""
        with torch.no_grad(), gpu_turn(), timing_stream():
            inputs = self.loaded.inputs(SEED)
            plain, graphs = times(self.runs, inputs)
        return replace(row, us=plain, graph_us=graphs)


def times(runs: Mapping[str, Call], inputs: Sequence[Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Median µs of calls one at a time with cold caches, and of CUDA graphs where capture succeeds; in alternating rounds."""
    flushed = torch.empty(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once(run: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        flushed.zero_()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return 1000.0 * float(start.elapsed_time(end))

    plain: dict[str, list[float]] = {name: [] for name in runs}
    graphs: dict[str, list[float]] = {name: [] for name in runs}
    calls = {}
    for name, run in runs.items():
        rough = min(once(partial(run, *inputs)) for _ in range(3))
        calls[name] = max(CALLS[0], min(CALLS[1], int(1e6 * TIMED_SECONDS / rough))) // ROUNDS
    for _ in range(ROUNDS):
        for name, run in runs.items():
            plain[name] += [once(partial(run, *inputs)) for _ in range(calls[name])]
    for _ in range(ROUNDS // 2):  # a graph holds its memory, so one is alive at a time
        for name, run in runs.items():
            replay = captured(partial(run, *inputs), 1)
            if replay is not None:
                graphs[name] += [once(replay) for _ in range(2 * calls[name])]
            del replay
            torch.cuda.empty_cache()
    return {name: median(us) for name, us in plain.items()}, {name: median(us) for name, us in graphs.items() if us}


def with_checks(row: GpuRow, contest: Contestants) -> GpuRow:
    """The row with both tests."""
    loaded, runs = contest.loaded, contest.runs
    theirs = all(_passes(runs, loaded.inputs(seed), THEIR_TOLERANCE[row.dtype]) for seed in range(SEED, SEED + TRIALS))
    row = replace(row, theirs=theirs)
    try:
        return with_errors(row, contest, in_float64(loaded.model), runs[EAGER], "float64")
    except FOREIGN_ERRORS as error:  # no memory, or a model that no copy in float64 has
        row = replace(row, problems={**row.problems, "float64": " ".join(str(error).split())[:300]})
    free_cached_memory()
    return with_errors(row, contest, runs[EAGER], runs.get("compile", runs[EAGER]), EAGER)


def _passes(runs: Mapping[str, Call], inputs: list[Any], tolerance: float) -> bool:
    """KernelBench's test on one choice of inputs."""
    with torch.no_grad():
        wanted, got = (tensors_of(runs[name](*inputs)) for name in (EAGER, OURS))
    return len(got) == len(wanted) and all(
        x.shape == y.shape and torch.allclose(x, y, atol=tolerance, rtol=tolerance) for x, y in zip(wanted, got, strict=True)
    )


def with_errors(row: GpuRow, contest: Contestants, reference: Call, plain: Call, name: str) -> GpuRow:
    """The row with the errors on their inputs or on normal ones, whichever are more of what is allowed.

    Inputs of which torch's own result is not finite, or has no digit of the reference, say nothing.
    """
    least = max(TOLERANCE, 2 * torch.finfo(contest.loaded.dtype).eps)
    operands = rounded_operands(torch.device(contest.loaded.device))
    found = replace(row, reference=NO_REFERENCE, error=None, torch_error=None, allowed=None)
    for normal in (False, True):
        inputs = contest.loaded.inputs(SEED)
        if normal:
            inputs = [torch.randn_like(value) if is_float(value) else value for value in inputs]
        with torch.no_grad():
            wanted = tensors_of(reference(*inputs))
            torchs, ours = (largest_error(tensors_of(run(*inputs)), wanted) for run in (plain, contest.runs[OURS]))
            if operands:
                with RoundedOperands(operands):
                    torchs = max(torchs, largest_error(tensors_of(contest.runs[EAGER](*inputs)), wanted))
        if not torchs <= MOST_OF_TORCH:  # the logarithm of a negative number, or what cancels but for roundings
            continue
        allowed = max(least, 4 * torchs)
        if found.error is None or found.allowed is None or ours / allowed > found.error / found.allowed:
            found = replace(found, reference=name, error=min(ours, MOST), torch_error=torchs, allowed=allowed)
    return found


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "triton": triton.__version__}


def main() -> None:
    """Run one problem."""
    path, name, stages, *rest = sys.argv[1:] or _awaited()
    begun = perf_counter()
    options = KernelBenchOptions(**json.loads(rest[0])) if rest else KernelBenchOptions()
    if options.device == "cuda" and not gpu_available():
        sys.exit("no CUDA GPU is usable here")
    seconds: dict[str, float] = {}
    for row in run_problem(Path(path), name, options):
        seconds[row.stage] = perf_counter() - begun
        append(Path(stages), [asdict(replace(row, stage_seconds=seconds))])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # freeing all that torch has imported takes seconds


def _awaited() -> list[str]:
    """The arguments as standard input has them, once all is imported."""
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "mirage_eg.torch_compile.compile_graph"):
        import_module(name)
    arguments: list[str] = json.loads(sys.stdin.readline())
    return arguments


if __name__ == "__main__":
    main()
