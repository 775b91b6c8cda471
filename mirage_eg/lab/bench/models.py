"""`mirage-eg bench models`: layers of published shapes by this backend, by eager torch and by torch.compile's two modes.

On a GPU all are captured in CUDA graphs and timed warm and cold, and the profiler lists the kernels of each. Without one
nothing is timed: kernels run in Triton's interpreter. The row then says how many segments are used, and how far the results are
from eager torch. Each row has the gate's record of its segments: times of ours and of Inductor's code, or why there are none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch

from mirage_eg.backends.measure.gpu_turn import autotune_in_turn, gpu_turn
from mirage_eg.backends.measure.timing import gpu_available, normal_inputs, time_alternately
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.ir.errors import ProgramError
from mirage_eg.lab.bench.kernel_profile import KernelTime, profile_kernels
from mirage_eg.lab.bench.model_layers import ROWS, layer_of
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.calls import segment_call
from mirage_eg.torch_compile.records import Compilation, SegmentRecord, graph_records
from mirage_eg.torch_compile.segment_call import SegmentCall

BASELINES: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "compile": {},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
OURS = "mirage_eg"


@dataclass(frozen=True, slots=True)
class ModelSegment:
    """A segment: what the gate found, and on a GPU the kernels of ours, used or not."""

    record: SegmentRecord
    kernels: tuple[KernelTime, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One row: segments used, error against eager torch, seconds to compile, µs of ours and the baselines, warm and cold."""

    name: str
    device: str
    torch: str
    used: int
    segments: int
    error: float
    compile_seconds: float
    fallbacks: tuple[str, ...] = ()  # reasons of graphs that Inductor compiled whole
    parts: tuple[ModelSegment, ...] = ()
    warm_us: dict[str, float] = field(default_factory=dict)
    cold_us: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, tuple[KernelTime, ...]] = field(default_factory=dict)  # of ours and of Inductor's modes

    @property
    def speedup(self) -> float | None:
        """The fastest baseline's warm time over ours."""
        return min(us for name, us in self.warm_us.items() if name != OURS) / self.warm_us[OURS] if self.warm_us else None


def chosen_rows(names: Sequence[str]) -> list[str]:
    """The row of each name, or the rows that begin with it; without names the rows that this machine can compute in a minute.

    Raises:
        ProgramError: a name that no row begins with.
    """
    if not names:
        return list(ROWS) if gpu_available() else ["tiny"]
    for name in names:
        if not any(row.startswith(name) for row in ROWS):
            raise ProgramError(f"bench models: got {name!r}, wanted the beginning of one of {', '.join(ROWS)}")
    return [row for row in ROWS if any(row == name or (name not in ROWS and row.startswith(name)) for name in names)]


def model_results(names: Sequence[str], budget: float, tune: float) -> Iterator[ModelResult]:
    """The results of rows, one after another."""
    on_gpu = gpu_available()
    if on_gpu:
        autotune_in_turn()
    for name in names:
        kind, dtype = ("cuda", torch.float16) if on_gpu else ("cpu", torch.float32)
        layer, arguments = layer_of(ROWS[name], kind, dtype)
        torch._dynamo.reset()
        before, started = len(graph_records()), perf_counter()
        options = {"budget": budget, "tune": tune, "gate": "time" if on_gpu else "cost"}
        with torch.no_grad():
            ours = torch.compile(layer, backend=backend, options=options, dynamic=False)
            got, wanted = ours(*arguments), layer(*arguments)
            seconds = perf_counter() - started
            error = ((got - wanted).abs().max() / wanted.abs().max()).item()
            compilation = Compilation(graph_records()[before:])
            parts = tuple(_part(segment, on_gpu) for graph in compilation.graphs for segment in graph.segments)
            warm_us, cold_us, kernels = _times(layer, ours, arguments) if on_gpu else ({}, {}, {})
        device = torch.cuda.get_device_name() if on_gpu else "cpu"
        yield ModelResult(
            name=name,
            device=device,
            torch=torch.__version__,
            used=compilation.used,
            segments=len(parts),
            error=error,
            compile_seconds=seconds,
            fallbacks=compilation.fallbacks,
            parts=parts,
            warm_us=warm_us,
            cold_us=cold_us,
            kernels=kernels,
        )


def _part(segment: SegmentRecord, on_gpu: bool) -> ModelSegment:
    """A segment with the kernels that it has, or would have, on the GPU."""
    call = segment_call(segment.key) if on_gpu and segment.kernels else None
    if not isinstance(call, SegmentCall):
        return ModelSegment(segment)
    with loaded(call.source) as module:
        run = RunningProgram(module, list(module.INPUTS)).repeated(normal_inputs(module), torch_library())
        with gpu_turn():
            return ModelSegment(segment, profile_kernels(run))


Times = dict[str, float]


def _times(
    layer: Any, ours: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Times, Times, dict[str, tuple[KernelTime, ...]]]:
    """Warm and cold times of ours and the baselines, and the kernels of ours and of Inductor's."""
    runs = {OURS: ours}
    for name, keywords in BASELINES.items():
        runs[name] = layer if keywords is None else torch.compile(layer, dynamic=False, **keywords)
    measured = time_alternately([partial(run, *arguments) for run in runs.values()])
    timings = dict(zip(runs, measured, strict=True))
    warm = {name: timing.warm_us for name, timing in timings.items()}
    with gpu_turn():
        kernels = {name: profile_kernels(partial(run, *arguments)) for name, run in runs.items() if name != "eager"}
    return warm, {name: timing.cold_us for name, timing in timings.items()}, kernels
