"""Work on all cores by threads of our own, each with a single-threaded BLAS.

Products here are many and short: a BLAS that starts threads for each of them waits longer for them than they compute, and much
longer where other work wants the cores too.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")
P = ParamSpec("P")


def with_own_threads(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, in which BLAS starts no threads."""

    @wraps(function)
    def single(*args: P.args, **kwargs: P.kwargs) -> T:
        threads()  # how many there may be is seen before
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return single


@cache
def threads() -> int:
    """As many threads as BLAS was allowed when it was first asked: the cores, or what OMP_NUM_THREADS and its like say."""
    return max((int(library["num_threads"]) for library in _controller().info() if library["user_api"] == "blas"), default=1)


def do_all(work: Callable[[T], object], items: Iterable[T]) -> None:
    """`work` on every item, in any order; one item alone is worked on here, so that work on pieces may ask for this again."""
    items = list(items)
    if threads() == 1 or len(items) == 1:
        for item in items:
            work(item)
        return
    for _ in _pool().map(work, items):
        pass


def for_each_thread(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in as many runs as there are threads, none empty."""
    count = min(threads(), len(items))
    return [items[len(items) * i // count : len(items) * (i + 1) // count] for i in range(count)]


@cache
def _controller() -> Any:
    return ThreadpoolController()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads())
