"""Tuning on one GPU or several: one process a GPU, each an executor with one worker.

Candidate i of a round is timed on GPU i modulo their number: the assignment does not depend on speed. The final round is on one
GPU, since its times are compared with each other. A process that dies or whose GPU context is lost is replaced; its candidate
is counted as failed. Processes take seconds to start: timers may use them one after another (`shared_timing_processes`).
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter
from types import TracebackType
from typing import Any

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.backends.evaluator.processes import begin_worker, end_processes, install_ops, keep_worker, pickled_ops
from mirage_eg.backends.measure.candidate_timer import FIXED_SHAPES, CandidateTimer, DeviceLost, run_once
from mirage_eg.backends.measure.timing import Outcome, Timing
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.shapes import Shape

Quick = Callable[[str], Outcome]
Full = Callable[[str], tuple[Outcome, Timing | None]]
HUNG_SECONDS = 2.0  # after the deadline; then the process of a candidate that is still running is ended
_LOOK_SECONDS = 0.1  # between looks whether anyone still waits for a run
_MOST_LOSSES = 5  # processes in a row; more losses are no fault of the candidates
Task = tuple[str, int, Sequence[Sequence[Shape]], bytes]  # what a timer is made of, with the custom ops
_timer: tuple[Task, CandidateTimer] | None = None  # of a worker's process
_IDLE: ContextVar[dict[str, Executor] | None] = ContextVar("idle timing processes", default=None)  # by GPU


def _nothing() -> None:
    """What a process is started with."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The functions that a worker calls, `prepare` first; with what a worker can unpickle if workers are processes."""

    quick: Quick
    full: Full
    prepare: Callable[[], None] = _nothing


class MultiGpuTimer:
    """A timer that distributes the candidates of a round over GPUs; a context, which starts and ends the processes."""

    def __init__(
        self,
        gpus: Sequence[str],
        start: Callable[[str], Executor],
        calls: Calls,
        leave: Callable[[str, Executor], None] = lambda gpu, executor: _end(executor, kill=False),
    ) -> None:
        """`start` returns an executor with one worker, which sees only the named GPU; `leave` takes it back."""
        self._gpus, self._start, self._calls, self._leave = tuple(gpus), start, calls, leave
        self._executors: dict[int, Executor] = {}
        self._losses: Counter[int] = Counter()  # of each GPU, since it last gave a result

    def __enter__(self) -> "MultiGpuTimer":
        for gpu in range(len(self._gpus)):  # ready when the first candidates are compiled
            self._submit(gpu, self._calls.prepare)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for gpu, executor in self._executors.items():
            if kind is None:
                self._leave(self._gpus[gpu], executor)
            else:
                _end(executor, kill=True)
        self._executors.clear()

    @property
    def gpus(self) -> int:
        """How many candidates are timed at once."""
        return len(self._gpus)

    def quick(self, source: str) -> Outcome:
        """On the first GPU."""
        outcome: Outcome = self._result(0, self._submit(0, self._calls.quick, source))
        return outcome

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        """On the first GPU."""
        result = self._result(0, self._submit(0, self._calls.full, source))
        return (result, None) if isinstance(result, Outcome) else result

    def quick_all(self, sources: Sequence[str], deadline: Callable[[], float]) -> Iterator[Outcome | None]:
        """The outcome of each source in their order; None for those not begun when `perf_counter` passed the deadline."""
        outcomes: dict[int, Outcome | None] = {}
        running: dict[Future[Any], int] = {}
        following = 0
        waiting = {gpu: list(range(gpu, len(sources), len(self._gpus))) for gpu in range(len(self._gpus))}
        for gpu in waiting:
            self._next(gpu, waiting, running, sources, deadline, outcomes)
        while running:
            left = deadline() + HUNG_SECONDS - perf_counter()
            done, hung = wait(running, None if left == inf else max(0.0, left), FIRST_COMPLETED)
            for future in () if done else hung:
                position = running.pop(future)
                gpu = position % len(self._gpus)
                _end(self._executors.pop(gpu), kill=True)
                outcomes[position] = Outcome(None, None, "not timed to its end: the seconds of tuning were over")
                self._next(gpu, waiting, running, sources, deadline, outcomes)
            for future in done:
                position = running.pop(future)
                gpu = position % len(self._gpus)
                outcomes[position] = self._result(gpu, future)
                self._next(gpu, waiting, running, sources, deadline, outcomes)
            while following in outcomes:
                yield outcomes[following]
                following += 1
        yield from (outcomes[rest] for rest in range(following, len(sources)))

    def _next(
        self,
        gpu: int,
        waiting: dict[int, list[int]],
        running: dict[Future[Any], int],
        sources: Sequence[str],
        deadline: Callable[[], float],
        outcomes: dict[int, Outcome | None],
    ) -> None:
        if perf_counter() > deadline():
            outcomes.update(dict.fromkeys(waiting[gpu]))
            waiting[gpu] = []
        if waiting[gpu]:
            position = waiting[gpu].pop(0)
            running[self._submit(gpu, self._calls.quick, sources[position])] = position

    def _submit(self, gpu: int, call: Callable[..., Any], *arguments: str) -> Future[Any]:
        """A call on a GPU; where its process ended before, one that has failed."""
        try:
            return self._executor(gpu).submit(call, *arguments)
        except BrokenExecutor as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _executor(self, gpu: int) -> Executor:
        if gpu not in self._executors:
            self._executors[gpu] = self._start(self._gpus[gpu])
        return self._executors[gpu]

    def _result(self, gpu: int, future: Future[Any]) -> Any:
        """The result of a call; an error is an outcome with its own words, and a lost process is replaced."""
        error = future.exception()
        if error is None or not isinstance(error, Exception):
            self._losses[gpu] = 0
            return future.result()
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if isinstance(error, (DeviceLost, BrokenExecutor)):
            _end(self._executors.pop(gpu), kill=True)
            self._losses[gpu] += 1
            if self._losses[gpu] == _MOST_LOSSES:
                raise MirageError(f"GPU {self._gpus[gpu]}: {_MOST_LOSSES} processes in a row were lost; {problem}") from error
        return Outcome(None, None, problem)


def _end(executor: Executor, kill: bool) -> None:
    """End an executor, with `kill` in the middle of its work; its processes are waited for, and leave nothing."""
    if hasattr(executor, "_executor_manager_thread"):  # of processes
        end_processes(executor, kill)
    else:
        executor.shutdown(wait=not kill)


def gpus_of_first_kind() -> list[str]:
    """The visible GPUs of the same kind as the first one, by their names for CUDA_VISIBLE_DEVICES."""
    import torch

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(count))) if given is None else [name.strip() for name in given.split(",")][:count]
    kinds = [torch.cuda.get_device_name(device) for device in range(count)]
    return [name for name, kind in zip(names, kinds, strict=True) if kind == kinds[0]]


@contextmanager
def shared_timing_processes(gpus: Sequence[str] = ()) -> Iterator[None]:
    """Timers in this context use the same processes, which end with it; those of `gpus` start at once."""
    idle = {gpu: _process(gpu) for gpu in gpus}
    for executor in idle.values():
        executor.submit(_begin_gpu)
    token = _IDLE.set(idle)
    try:
        yield
    finally:
        _IDLE.reset(token)
        for executor in idle.values():
            _end(executor, kill=True)


def run_elsewhere(device: int, source: str, shapes: Sequence[Shape]) -> str | None:
    """Run a program once in an idle process of a GPU: the error with which its kernels ended the context there.

    None if they did not, and where no process of `shared_timing_processes` is idle or may use the GPU.
    """
    idle, gpus = _IDLE.get(), gpus_of_first_kind()
    gpu = gpus[device] if device < len(gpus) else ""
    if idle is None or (executor := idle.pop(gpu, None)) is None:
        return None
    try:
        if _error_of(executor, _nothing) is not None:  # it could not begin
            _end(executor, kill=True)
            return None
        error = _error_of(executor, _run_once, source, shapes, pickled_ops())
    except BaseException:  # the seconds of the search are over, or it is interrupted
        _end(executor, kill=True)
        raise
    if not isinstance(error, (DeviceLost, BrokenExecutor)):  # another one is the caller's to find
        idle[gpu] = executor
        return None
    _end(executor, kill=True)
    idle[gpu] = _process(gpu)
    idle[gpu].submit(_begin_gpu)
    return str(error)


def _error_of(executor: Executor, call: Callable[..., Any], *arguments: Any) -> BaseException | None:
    """The error of a call in a process, while someone still waits for it."""
    try:
        future = executor.submit(call, *arguments)
    except BrokenExecutor as error:
        return error
    while not future.done():
        raise_if_stopped()
        wait([future], _LOOK_SECONDS)
    return future.exception()


def multi_gpu_timer(
    gpus: Sequence[str], source: str, seed: int, shapes: Sequence[Sequence[Shape]] = FIXED_SHAPES
) -> MultiGpuTimer:
    """`backends.measure.candidate_timer.CandidateTimer` in a process on each GPU."""
    idle = _IDLE.get()

    def start(gpu: str) -> Executor:
        return _process(gpu) if idle is None or gpu not in idle else idle.pop(gpu)

    def leave(gpu: str, executor: Executor) -> None:
        if idle is None or gpu in idle:
            _end(executor, kill=False)
            return
        try:
            executor.submit(_forget)
        except BrokenExecutor:
            _end(executor, kill=True)
        else:
            idle[gpu] = executor

    task = source, seed, shapes, pickled_ops()
    return MultiGpuTimer(gpus, start, Calls(partial(_quick, task), partial(_full, task), partial(_prepare, task)), leave)


def _process(gpu: str) -> Executor:
    import loky

    executor: Executor = loky.ProcessPoolExecutor(1, env={"CUDA_VISIBLE_DEVICES": gpu}, initializer=_begin)
    return executor


def _begin() -> None:
    begin_worker()
    keep_worker()


def _begin_gpu() -> None:
    import torch

    torch.cuda.init()


def _run_once(source: str, shapes: Sequence[Shape], ops: bytes) -> None:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:  # one process alone may use the GPU
        return
    install_ops(ops)
    run_once(source, shapes)


def _timer_of(task: Task) -> CandidateTimer:
    """The timer of a task: the one that is there, or a new one in its place."""
    global _timer
    if _timer is None or _timer[0] != task:
        _forget()
        source, seed, shapes, ops = task
        install_ops(ops)
        _timer = task, CandidateTimer(source, seed, shapes)
    return _timer[1]


def _forget() -> None:
    """Give the memory of the timer back to the GPU."""
    global _timer
    if _timer is not None:
        import torch

        _timer = None
        torch.cuda.empty_cache()


def _prepare(task: Task) -> None:
    _timer_of(task)


def _quick(task: Task, source: str) -> Outcome:
    return _timer_of(task).quick(source)


def _full(task: Task, source: str) -> tuple[Outcome, Timing | None]:
    return _timer_of(task).full(source)
