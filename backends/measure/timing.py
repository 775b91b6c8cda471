"""Timing emitted programs on the current GPU: warm, and with the caches flushed."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import nan
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from mirage_eg.backends.measure.gpu_turn import gpu_turn
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.file_tables import tables_of
from mirage_eg.ir.errors import MirageError

_FLUSHED_BYTES = 256 << 20  # several times any L2 cache
_COLD = 5  # times as many runs with flushed caches: one is timed by itself, and they differ by a fifth
_COLD_US = 300_000.0  # of a run's cold times together, after as many as the warm ones have: long runs differ less
_ROUNDS = 4  # in which runs alternate
_BATCH_US = 1000.0  # launches are timed in batches that take about so long: an event's resolution is 0.5 µs


@dataclass(frozen=True, slots=True)
class Outcome:
    """`us` where the candidate is right; `problem` where it is wrong or does not run.

    `error` is relative to the largest element. `kernels_us` has the time of each generated kernel, where there are several.
    `tried`: it compiled.
    """

    us: float | None
    error: float | None
    problem: str | None
    kernels_us: tuple[float, ...] = ()
    tried: bool = True


@dataclass(frozen=True, slots=True)
class Timing:
    """Median time of one run of all kernels of a program, in microseconds.

    `warm`: back to back on the same data; `cold`: the L2 cache flushed before each. The spreads are interquartile ranges.
    `method` says how kernels were launched: by replaying a CUDA graph, or one by one where capture fails. Cold times that were
    not asked for are NaN.
    """

    warm_us: float
    warm_spread_us: float
    cold_us: float
    cold_spread_us: float
    method: str
    device: str


def gpu_available() -> bool:
    """Whether emitted programs can run here: a driver, torch, and a GPU that torch finds."""
    try:
        ctypes.CDLL("libcuda.so.1")  # first, since importing torch takes seconds
    except OSError:
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def can_time(device: Any) -> bool:
    """Whether kernels run on a device of torch as fast as they can; in Triton's interpreter they do not."""
    return device is not None and bool(device.type == "cuda")


def gpu_name() -> str:
    """The name of the current GPU."""
    import torch

    return str(torch.cuda.get_device_name())


def gpu_target() -> str:
    """The architecture of the current GPU, as TARGETS names it."""
    import torch

    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties().gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{10 * major + minor}"


def time_source(source: str | Path, *, repeats: int = 20, seed: int = 0, shapes: Sequence[Sequence[int]] = ()) -> Timing:
    """Time an emitted program (its text, or the path of its file) on standard normal inputs.

    `shapes` are those of the inputs of a program that takes sizes.

    Raises MirageError: no GPU here, or one with too little memory; the source is no emitted program.
    """
    if not gpu_available():
        raise MirageError("timing: torch finds no GPU here")
    with memory_errors_reported(), loaded(source) as module:
        tensors = normal_inputs(module, seed, shapes)
        with timing_stream():
            program = RunningProgram(module, list(tables_of(module, shapes).inputs), shapes=shapes)
            return time_launches(program.repeated(tensors, torch_library()), repeats)


def free_cached_memory() -> None:
    """Give the memory back that torch keeps for later tensors: other processes of this GPU may need it."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def memory_errors_reported() -> Iterator[None]:
    """Report a GPU with too little memory as bad input. Raises MirageError: an allocation failed."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition("\n")[0].partition(". GPU ")[0]
        raise MirageError(f"timing: {reason}; wanted a GPU with memory for the program; try: smaller sizes") from None


def normal_inputs(module: Any, seed: int = 0, shapes: Sequence[Sequence[int]] = ()) -> list[Any]:
    """Standard normal tensors on the GPU for the inputs of an emitted program; whole numbers below their bounds."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    tensors = []
    for position, (shape, dtype, strides) in enumerate(tables_of(module, shapes).inputs.values()):
        tensor = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device="cuda")
        numbers = torch.randn(shape, device="cuda", generator=generator)
        if below := getattr(module, "WHOLE", {}).get(position):
            numbers = torch.randint(below, shape, device="cuda", generator=generator)
        if (masked := getattr(module, "CAUSAL", {}).get(position)) is not None:
            numbers = causal_mask(shape, masked)
        tensors.append(tensor.copy_(numbers))
    return tensors


def causal_mask(shape: Sequence[int], masked: int, device: Any = "cuda") -> Any:
    """A causal mask without so many of its last columns (`causal_inputs`); the formula of `CAUSAL_MASK`."""
    import torch

    ones = torch.ones(tuple(shape), device=device).tril(max(0, shape[-1] - shape[-2]))
    return ones * (torch.arange(shape[-1], device=device) < shape[-1] - masked)


@contextmanager
def timing_stream() -> Iterator[None]:
    """Make the stream on which programs are timed the current one: no CUDA graph is captured on the default stream."""
    import torch

    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@cache
def _stream(device: int) -> Any:
    import torch

    return torch.cuda.Stream(device)


def time_launches(run: Callable[[], object], repeats: int = 20) -> Timing:
    """Time the launches of `run` on the current device, when it is the turn of this process."""
    return time_alternately([run], repeats)[0]


def time_alternately(
    runs: Sequence[Callable[[], object]], repeats: int = 20, *, graphs: bool = True, cold: bool = True
) -> list[Timing]:
    """Time each of `runs`, in alternating rounds: clocks that follow the load favour none of them.

    Every other round takes all but the first in reverse order, since a GPU is faster after a run of little load.

    Without `graphs` the runs are called, so that the time has what the host does between kernels.
    """
    with gpu_turn(), timing_stream():
        return _timed([_ready(run, graphs) for run in runs], repeats, cold)


def time_in_turn(run: Callable[[], object], repeats: int = 20) -> Timing:
    """The time of `run` on the current stream, for a process whose parent holds the turn."""
    return _timed([_ready(run)], repeats)[0]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A run that is compiled and, where that succeeds, captured: once, and `batch` times; once takes about `us`."""

    once: Callable[[], object]
    many: Callable[[], object]
    batch: int
    method: str
    us: float


def _ready(run: Callable[[], object], graphs: bool = True) -> _Ready:
    import torch

    for _ in range(3):  # compiles the kernels, warms the allocator
        run()
    torch.cuda.synchronize()
    once = captured(run, 1) if graphs else None
    launch, method = (run, "events") if once is None else (once, "graph")
    rough = median(event_us(launch, repeats=3))
    batch = max(1, min(1000, round(_BATCH_US / max(rough, 0.5))))
    many = captured(run, batch) if once is not None and batch > 1 else None
    if many is None:

        def many() -> None:
            for _ in range(batch):
                launch()

    return _Ready(launch, many, batch, method, rough)


def _timed(runs: Sequence[_Ready], repeats: int, cold: bool = True) -> list[Timing]:
    import torch

    warms: list[list[float]] = [[] for _ in runs]
    colds: list[list[float]] = [[] for _ in runs]
    for number, measured in enumerate(_in_rounds(repeats)):
        for run, times in _in_turns(number, runs, warms):
            times += [total / run.batch for total in event_us(run.many, measured)]
    if cold:
        flushed = torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
        often = max(repeats, min(_COLD * repeats, int(_COLD_US / max(run.us for run in runs))))
        for number, measured in enumerate(_in_rounds(often)):
            for run, times in _in_turns(number, runs, colds):
                times += event_us(run.once, measured, before=flushed.zero_)
    device = gpu_name()
    return [
        Timing(*_middle(warm), *_middle(colds_of_run), run.method, device)
        for run, warm, colds_of_run in zip(runs, warms, colds, strict=True)
    ]


def _in_turns(number: int, runs: Sequence[_Ready], times: Sequence[list[float]]) -> Sequence[tuple[_Ready, list[float]]]:
    """Each run with its times, in the order of a round: the neighbours of a run change sides from one round to the next."""
    first, *others = zip(runs, times, strict=True)
    return [first, *(reversed(others) if number % 2 else others)]


def _in_rounds(repeats: int) -> list[int]:
    """These repeats as the counts of rounds, at least one each."""
    return [len(range(first, repeats, _ROUNDS)) for first in range(min(_ROUNDS, repeats))]


def _middle(times: list[float]) -> tuple[float, float]:
    """The median and the interquartile range; NaN of no times."""
    if not times:
        return nan, nan
    low, middle, high = quantiles(times, n=4)
    return middle, high - low


def captured(run: Callable[[], object], times: int) -> Callable[[], None] | None:
    """A CUDA graph of `times` runs on the `timing_stream`, or None if they cannot be captured."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for _ in range(times):
                run()
    except RuntimeError:  # torch's error for an operation that capture forbids
        torch.cuda.synchronize()
        return None
    replay: Callable[[], None] = graph.replay
    replay()
    torch.cuda.synchronize()
    return replay


def event_us(launch: Callable[[], object], repeats: int, before: Callable[[], Any] | None = None) -> list[float]:
    """Microseconds between events around each launch."""
    import torch

    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in pairs:
        if before is not None:
            before()
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return [1000.0 * start.elapsed_time(end) for start, end in pairs]
