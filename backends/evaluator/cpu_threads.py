"""A thread pool over all cores, each thread with a single-threaded BLAS, and background tasks. All state of threads is here.

Matrix products here are many and short: a BLAS that starts threads for each product waits longer for the threads than they
compute, and much longer where other work uses the cores too. While a background task runs, Python switches threads every
0.1 ms in place of 5 ms: otherwise the body waits up to 5 ms for the interpreter after each NumPy call.
"""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from threading import Event, Lock, local
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

from mirage_eg.ir.deadline import NEVER, Deadline

T = TypeVar("T")
P = ParamSpec("P")
_SWITCH_SECONDS = 1e-4  # a thread that computes in Python holds the interpreter for at most so long


class StoppedError(Exception):
    """The body that started this background task has ended."""


class OverdueError(Exception):
    """The time of this work is over."""


class SharedContext:
    """A context that several threads share: the first thread enters it, the last one leaves it."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock = make, Lock()
        self._inside = 0
        self._context: AbstractContextManager[Any]

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._context = self._make()
                self._context.__enter__()
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._context.__exit__(None, None, None)


def with_own_threads(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, during which BLAS starts no threads."""

    @wraps(function)
    def single(*args: P.args, **kwargs: P.kwargs) -> T:
        threads()  # asks BLAS for its number of threads before the limit holds
        with _one_blas_thread:
            return function(*args, **kwargs)

    return single


@cache
def threads() -> int:
    """The number of threads that BLAS was allowed at the first call: the cores, or the value of OMP_NUM_THREADS."""
    return max((int(library["num_threads"]) for library in _controller().info() if library["user_api"] == "blas"), default=1)


def do_all(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Apply `work` to every item, in any order; nested calls, and calls with one item, use no other threads.

    The threads of the items end when this one's work does (`ending`, `background_task`).
    """
    items = list(items)
    shared = threads() > 1 and len(items) > 1 and not getattr(_thread, "is_item", False)
    stop, until = getattr(_thread, "stop", None), _until()

    def work_of_this_thread(item: T) -> None:
        _thread.stop, _thread.until = stop, until
        raise_if_stopped()
        work(item)

    for position, item in enumerate(items):
        if shared and (not in_background() or _is_awaited()):
            for _ in thread_pool().map(work_of_this_thread, items[position:]):
                pass
            return
        raise_if_stopped()
        work(item)


@contextmanager
def background_task(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Run `work` on a thread of its own while the body runs; yields a function that waits for the result.

    The task uses one core until the body waits for it, and the interpreter switches threads more often meanwhile. When the body
    ends, the task is stopped at its next item of shared work or call of `raise_if_stopped`. Only the main thread handles Ctrl-C
    and SIGTERM: the task and the processes that it starts block them.

    Raises:
        Each exception of `work`, from the function that waits.
    """
    stop, awaited, until = Event(), Event(), _until()

    def run() -> T:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        _thread.stop, _thread.awaited, _thread.until = stop, awaited, until
        with _frequent_switches:
            return work()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)

        def result() -> T:
            awaited.set()
            return future.result()

        try:
            yield result
        finally:
            stop.set()


def in_background() -> bool:
    """Whether this thread runs a background task."""
    return getattr(_thread, "stop", None) is not None


def _is_awaited() -> bool:
    """Whether this thread runs a background task whose result the body waits for."""
    awaited: Event | None = getattr(_thread, "awaited", None)
    return awaited is not None and awaited.is_set()


@contextmanager
def ending(until: Deadline) -> Iterator[None]:
    """The body ends at `until`, or earlier where it is in the body of another one.

    Raises OverdueError: by the first `raise_if_stopped` after the end; each node of an evaluation calls it.
    """
    before = _until()
    _thread.until = until.or_before(before)
    try:
        yield
    finally:
        _thread.until = before


def excuse(seconds: float) -> None:
    """Let the work of this thread end so much later: it waited for others."""
    _thread.until = _until().later(seconds)


def _until() -> Deadline:
    """The end of the work of this thread."""
    until: Deadline = getattr(_thread, "until", NEVER)
    return until


def raise_if_stopped() -> None:
    """Raise a StoppedError in a background task whose body has ended, an OverdueError after the end of `ending`."""
    stop: Event | None = getattr(_thread, "stop", None)
    if stop is not None and stop.is_set():
        raise StoppedError
    if _until().passed():
        raise OverdueError


def keep_step_with(xp: Any) -> None:
    """Raise as `raise_if_stopped` does; where the work has an end, only after a GPU has done what it was given.

    Functions of its array module return before they have computed, so that a clock would see launches alone.
    """
    if _until() != NEVER and hasattr(xp, "cuda"):
        xp.cuda.get_current_stream().synchronize()
    raise_if_stopped()


def for_each_thread(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in as many consecutive runs as there are threads, none empty."""
    return split_evenly(items, threads())


def split_evenly(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Neighbours together, in at most so many runs of nearly equal length, none empty."""
    count = min(len(items), most)
    return [items[i * len(items) // count : (i + 1) * len(items) // count] for i in range(count)]


@cache
def _controller() -> Any:
    return ThreadpoolController()


@cache
def thread_pool() -> ThreadPoolExecutor:
    """The threads that run items; an item knows that it is one."""
    return ThreadPoolExecutor(threads(), initializer=lambda: setattr(_thread, "is_item", True))


@contextmanager
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


_thread = local()  # `stop` and `awaited` in a background task; `until` inside `ending`; `is_item` in a thread of the pool
_frequent_switches = SharedContext(_switch_often)
_one_blas_thread = SharedContext(lambda: _controller().limit(limits=1, user_api="blas"))
