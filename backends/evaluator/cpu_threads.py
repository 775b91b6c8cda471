"""Work on all cores by threads of our own, each with a single-threaded BLAS.

Products here are many and short: a BLAS that starts threads for each of them waits longer for them than they compute, and much
longer where other work wants the cores too.
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

T = TypeVar("T")
P = ParamSpec("P")
_SWITCH_SECONDS = 1e-4  # after which a thread that computes in Python lets another one have a turn


class StoppedError(Exception):
    """Nobody waits for this work any more."""


class _Shared:
    """A context that threads may be in together: the first enters it, the last leaves it."""

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
    """`function`, in which BLAS starts no threads."""

    @wraps(function)
    def single(*args: P.args, **kwargs: P.kwargs) -> T:
        threads()  # how many there may be is seen before
        with _one_blas_thread:
            return function(*args, **kwargs)

    return single


@cache
def threads() -> int:
    """As many threads as BLAS was allowed when it was first asked: the cores, or what OMP_NUM_THREADS and its like say."""
    return max((int(library["num_threads"]) for library in _controller().info() if library["user_api"] == "blas"), default=1)


def do_all(work: Callable[[T], object], items: Iterable[T]) -> None:
    """`work` on every item, in any order; work that is itself on an item here, or has one item, does all of it by itself."""
    items = list(items)
    shared = threads() > 1 and len(items) > 1 and not getattr(_here, "is_item", False)
    for place, item in enumerate(items):
        if shared and (not is_beside() or _is_awaited()):
            for _ in _pool().map(work, items[place:]):
                pass
            return
        go_on()
        work(item)


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """`work` on a thread of its own, beside the body: what is given waits for its result, and raises what it raised.

    It takes one core until its result is waited for, and turns at the interpreter are short meanwhile. Behind the body it is
    stopped at the next piece of work that it would share out, or where it asks whether to `go_on`. Ctrl-C and SIGTERM are the
    main thread's business: neither this one nor a process that it starts hears of them.
    """
    stop, awaited = Event(), Event()

    def run() -> T:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        _here.stop, _here.awaited = stop, awaited
        with _short_turns:
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


def is_beside() -> bool:
    """Whether this is work `beside` other work."""
    return getattr(_here, "stop", None) is not None


def _is_awaited() -> bool:
    """Whether this is work `beside` a body that does nothing but wait for it."""
    awaited: Event | None = getattr(_here, "awaited", None)
    return awaited is not None and awaited.is_set()


def go_on() -> None:
    """Raise a StoppedError if this is work `beside` a body that has ended."""
    stop: Event | None = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise StoppedError


def for_each_thread(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in as many runs as there are threads, none empty."""
    count = min(threads(), len(items))
    return [items[len(items) * i // count : len(items) * (i + 1) // count] for i in range(count)]


@cache
def _controller() -> Any:
    return ThreadpoolController()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), initializer=lambda: setattr(_here, "is_item", True))


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


_here = local()  # `stop` and `awaited`, where work is beside other work; `is_item`, where it is a part of shared work
_short_turns = _Shared(_switching_often)
_one_blas_thread = _Shared(lambda: _controller().limit(limits=1, user_api="blas"))
