"""Where work items run: in this process, in local processes, on Dask, or on any `concurrent.futures.Executor`.

Items are pure, so that place and number of runs do not matter: the items of a dead worker run again. Local
processes are fresh ones (loky): a forked one would share the state of CUDA and of e-graphs, and multiprocessing's spawned one
would run the caller's script again.
"""

import logging
import os
import pickle
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from math import inf
from time import perf_counter, thread_time
from types import TracebackType
from typing import Any

from mirage_eg.backends.evaluator.cpu_threads import in_background, raise_if_stopped, split_evenly
from mirage_eg.backends.evaluator.processes import begin_worker, end_processes, install_ops, pickled_ops
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.pipeline.run.code_hash import code_hash

Memory = list[tuple[Any, dict[Any, Any]]]  # results by their items, with what the items have in common
Function = Callable[[Any, Sequence[Any]], Iterable[Any]]  # what is common to all items, items; gives a result for each in order
DASK = re.compile(r"dask(?:://(?P<address>[^\s/:]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}))?")
WORTH_STARTING = 2.5  # seconds of work left that are worth starting processes
WORTH_SENDING = 0.5  # likewise, where they run already
LOOK_SECONDS = 0.1  # between looks whether anyone still waits for the work
MOST_LOSSES = 3  # rounds in a row in which workers died and nothing was finished
CHUNKS = 4  # for each worker
CONNECT_SECONDS = 10
_GROWTH = {"LOKY_MAX_MEMORY_LEAK_SIZE": "2e9"}  # bytes by which a worker may grow: then loky warns, and starts another one
_LOGGER = logging.getLogger(__name__)


def usable_cores() -> int:
    """The cores that this process may use, which are fewer than the machine's under `taskset` or a batch system."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def check_executor(value: Any) -> None:
    """Raise an OptionError unless `value` says where items may run."""
    if value is None or isinstance(value, Executor) or (isinstance(value, str) and DASK.fullmatch(value)):
        return
    raise OptionError(f"executor: got {value!r}, wanted dask, dask://HOST:PORT, or a concurrent.futures.Executor")


@dataclass(slots=True)
class _SharedProcesses:
    """Local processes that runs use one after another; nobody waits for the `late` work of theirs.

    `memory` has results of items, by what is common to them.
    """

    executor: Executor | None = None
    count: int = 0
    late: list[Future[list[Any]]] = field(default_factory=list)
    memory: Memory = field(default_factory=list)


_SHARED: ContextVar[_SharedProcesses | None] = ContextVar("shared processes", default=None)


@contextmanager
def shared_processes() -> Iterator[None]:
    """Runs in this context use the same local processes, if they want equally many, and the same results of equal items.

    The processes end with the context.
    """
    shared = _SharedProcesses()
    token = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(token)
        if shared.executor is not None:
            end_processes(shared.executor, kill=not all(late.done() for late in shared.late))


class Workers:
    """The workers of one run; `run` gives the results of items as they are finished. Use it as a context."""

    def __init__(self, executor: Executor | str | None = None, jobs: int | None = None) -> None:
        self.count = jobs or usable_cores()
        self._shared = _SHARED.get() or _SharedProcesses()
        self._given, self._local = executor, False
        self._late: list[Future[list[Any]]] = []  # begun, and no longer waited for
        self._ahead: dict[Any, Future[list[Any]]] = {}  # items of `_job` that `run_ahead` began and no call has asked for
        self._job: _Job | None = None
        self._seconds = 0.0  # of work in `run_ahead` before processes were worth starting
        self._executor: Executor | None = None
        self._lost: tuple[type[BaseException], ...] = (BrokenExecutor, CancelledError)
        self._stack = ExitStack()

    def __enter__(self) -> "Workers":
        match self._given:
            case str(url):
                self._executor = self._connect(url)
            case Executor():
                self._executor = self._given
                self.count = getattr(self._given, "_max_workers", None) or self.count
                self._know_dask()
            case None if self._shared.count == self.count:
                self._executor, self._local = self._shared.executor, True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave_ahead()
        if kind is None and self._is_shared and _SHARED.get() is self._shared:
            self._shared.late += self._late
        else:
            self._stop(kill=kind is not None or not all(late.done() for late in self._late))
        self._stack.close()

    def run(
        self,
        stage: str,
        function: Function,
        common: Any,
        items: Sequence[Any],
        until: Callable[[], float] = lambda: inf,
        at_once: bool = False,
    ) -> Iterator[tuple[int, Any]]:
        """The results of all items, each with its position, as they are finished.

        Without an executor they run here, sequentially, until processes are worth starting: with `at_once` they always are, if
        there may be several, and each item is sent alone. When `perf_counter` passes `until`, the results end; a process that
        is still at work when this context ends is ended.
        """
        self._leave_ahead()
        left = list(range(len(items)))
        if self._given is None and not (at_once and self.count > 1):
            left = yield from self._run_here(function, common, items)
        chunks = [[position] for position in left] if at_once else split_evenly(left, self.count * CHUNKS)
        losses = 0
        while chunks:
            lost: list[Sequence[int]] = []
            for chunk, results in self._run_there(function, common, items, chunks, until):
                if results is None:
                    lost.append(chunk)
                else:
                    losses = 0
                    yield from zip(chunk, results, strict=True)
            if lost:
                losses += 1
                _LOGGER.warning("%s: a worker died; %d items run again", stage, sum(map(len, lost)))
                if losses == MOST_LOSSES:
                    raise MirageError(
                        f"{stage}: workers died {losses} times at the same work; is there too little memory? try --jobs 1"
                    )
            chunks = [[position] for chunk in lost for position in chunk]

    def run_ahead(
        self, stage: str, function: Function, common: Any, items: Sequence[Any], likely: Iterable[Any]
    ) -> Iterator[tuple[int, Any]]:
        """The results of all items, each with its position, as they are finished; items are hashable and differ.

        Idle workers begin items that are `likely` to be asked for in the next call; results do not depend on it. Without an
        executor it is as `run` until calls have taken so long that processes are worth starting.
        """
        if self._executor is None and (self.count == 1 or self._seconds < WORTH_STARTING):
            start = _seconds_of_work()
            yield from self.run(stage, function, common, items)
            self._seconds += _seconds_of_work() - start
            return
        if self._job is None or not self._job.is_of(function, common):
            self._leave_ahead()
            self._job = _Job(function, common)
        lost: list[int] = []
        try:
            for item in items:
                self._begin(item, self._job)
            upcoming = islice(likely, self.count)  # many of them began in earlier calls, and naming them takes time
            while self._has_idle() and (item := next(upcoming, None)) is not None:
                self._begin(item, self._job)
        except BrokenExecutor:
            self._leave_ahead()
            lost += range(len(items))
        positions = {self._ahead.pop(item): position for position, item in enumerate(items) if item in self._ahead}
        try:
            for future in completed_until(positions, lambda: inf):
                try:
                    [result] = future.result()
                except self._lost:
                    lost.append(positions[future])
                else:
                    yield positions[future], result
        finally:
            self._leave(positions)
        again = [items[position] for position in lost]
        for place, result in self.run(stage, function, common, again, at_once=True) if again else ():
            yield lost[place], result

    def submit(self, function: Function, common: Any, item: Any) -> Future[list[Any]]:
        """Begin one item in a process; the future has its result alone. What is not done when this context ends is ended."""
        future = _Job(function, common).submit(self.open_pool(), [item])
        self._late.append(future)
        return future

    def memory(self, common: Any) -> dict[Any, Any]:
        """The results of items with this in common, by their items; runs that share processes share them and add to them."""
        for known, results in self._shared.memory:
            if known == common:
                return results
        results = dict[Any, Any]()
        self._shared.memory.append((common, results))
        return results

    def _begin(self, item: Any, job: "_Job") -> None:
        if item not in self._ahead:
            self._ahead[item] = job.submit(self.open_pool(), [item])

    def _has_idle(self) -> bool:
        return sum(not future.done() for future in self._ahead.values()) < self.count

    def _leave_ahead(self) -> None:
        """Nobody will ask for what was begun ahead."""
        self._leave(self._ahead.values())
        self._ahead.clear()

    def _leave(self, futures: Iterable[Future[list[Any]]]) -> None:
        """Wait no longer for what was begun."""
        self._late = [late for late in (*self._late, *futures) if not late.cancel() and not late.done()]

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], until: Callable[[], float] = lambda: inf
    ) -> Iterator[tuple[int, Any]]:
        """As `run`, of a function of one item, for work that is always worth a process."""
        return self.run("tune", _each, function, items, until, at_once=True)

    def _run_here(self, function: Function, common: Any, items: Sequence[Any]) -> Generator[tuple[int, Any], None, list[int]]:
        """Run items until the rest is worth sending away; returns the positions of the rest."""
        start = _seconds_of_work()
        done = 0
        for result in function(common, items):
            yield done, result
            done += 1
            expected = (_seconds_of_work() - start) / done * (len(items) - done)
            worth = WORTH_SENDING if self._executor is not None else WORTH_STARTING
            worth *= 2 if in_background() else 1  # then another core works already
            if self.count > 1 and len(items) - done > 1 and expected > worth:
                break
        return list(range(done, len(items)))

    def _run_there(
        self, function: Function, common: Any, items: Sequence[Any], chunks: Sequence[Sequence[int]], until: Callable[[], float]
    ) -> Iterator[tuple[Sequence[int], list[Any] | None]]:
        """The results of each chunk, None where its worker died."""
        futures: dict[Future[list[Any]], Sequence[int]] = {}
        unsent: list[Sequence[int]] = []
        executor = self.open_pool()
        job = _Job(function, common)
        broken = False
        for chunk in chunks:
            try:
                futures[job.submit(executor, [items[i] for i in chunk])] = chunk
            except BrokenExecutor:
                broken = True
                unsent.append(chunk)
        try:
            for future in completed_until(futures, until):
                try:
                    results = future.result()
                except self._lost as error:
                    broken |= isinstance(error, BrokenExecutor)
                    yield futures[future], None
                else:
                    yield futures[future], results
        finally:
            self._leave(futures)
        for chunk in unsent:
            yield chunk, None
        if broken:
            self._stop(kill=True)

    def open_pool(self) -> Executor:
        """The pool of processes, which starts at the first call."""
        if self._executor is None:
            import loky  # here, as most runs of the command line do without

            self._executor = loky.ProcessPoolExecutor(self.count, initializer=begin_worker, env=_GROWTH)
            self._local = True
            if self._shared.executor is None:
                self._shared.executor, self._shared.count = self._executor, self.count
        return self._executor

    @property
    def _is_shared(self) -> bool:
        return self._executor is not None and self._executor is self._shared.executor

    def _stop(self, kill: bool) -> None:
        """End local processes; an executor that was given is its owner's, but no longer used once it is broken."""
        if self._local and self._executor is not None:
            if self._is_shared:
                self._shared.executor = None
            end_processes(self._executor, kill)
        self._executor, self._local = None, False

    def _connect(self, url: str) -> Executor:
        try:
            from distributed import Client, LocalCluster
        except ImportError:
            raise OptionError("executor: Dask is not installed; pip install 'mirage-eg[distributed]'") from None
        match = DASK.fullmatch(url)
        assert match is not None  # checked with the options
        address = match["address"]
        if address is None:
            with _interrupts_ignored():  # Ctrl-C is this process's business
                address = self._stack.enter_context(
                    LocalCluster(
                        n_workers=max(2, self.count),
                        threads_per_worker=1,
                        dashboard_address=":0",  # with None, all clusters of a machine ask for port 8787
                        silence_logs=logging.CRITICAL,
                    )
                )
        try:
            client = self._stack.enter_context(Client(address, timeout=CONNECT_SECONDS, set_as_default=False))
        except OSError as error:
            raise OptionError(f"executor: no Dask scheduler answers at {address}: {str(error)[:100]}") from None
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise OptionError(f"executor: the Dask scheduler at {url} has no workers; start some with dask worker") from None
        self._know_dask()
        _check_code(client)
        self.count = max(1, sum(client.ncores().values()))
        executor: Executor = client.get_executor(pure=False)
        return executor

    def _know_dask(self) -> None:
        if "distributed" in sys.modules:
            from distributed import KilledWorker

            self._lost = (*self._lost, KilledWorker)


def _check_code(client: Any) -> None:
    """Raise an OptionError unless every Dask worker runs the code that runs here."""
    for worker, said in client.run(_hash_code, on_error="return").items():
        if isinstance(said, BaseException):
            raise OptionError(f"executor: the Dask worker {worker} cannot import mirage_eg: {str(said)[:200]}")
        if said != code_hash():
            raise OptionError(f"executor: the Dask worker {worker} runs other code of mirage_eg than this process")


def _hash_code() -> str:
    return code_hash()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that are started meanwhile ignore Ctrl-C for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _seconds_of_work() -> float:
    """CPU seconds of this thread and of the processes that it waited for; under other load wall time is much longer."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return thread_time() + children.ru_utime + children.ru_stime


def completed_until(futures: Iterable[Future[Any]], until: Callable[[], float]) -> Iterator[Future[Any]]:
    """The futures as they are completed, until `perf_counter` passes `until`.

    Raises StoppedError: this is background work, and its body has ended.
    """
    waiting = set(futures)
    while waiting and (left := until() - perf_counter()) > 0:
        look = LOOK_SECONDS if in_background() else None if left == inf else left
        done, waiting = wait(waiting, look, FIRST_COMPLETED)
        raise_if_stopped()
        yield from done


class _Job:
    """A function with what its items have in common, pickled once for all chunks of items, as are the custom ops."""

    def __init__(self, function: Function, common: Any) -> None:
        import cloudpickle  # here, as most runs of the command line do without

        self._function, self._common = function, common
        self._packed, self._ops = cloudpickle.dumps(common), pickled_ops()

    def is_of(self, function: Function, common: Any) -> bool:
        """Whether these are the same objects."""
        return self._function is function and self._common is common

    def submit(self, executor: Executor, items: Sequence[Any]) -> Future[list[Any]]:
        """Send a chunk of items to a worker."""
        return executor.submit(run_chunk, self._function, self._packed, items, self._ops)


def run_chunk(function: Function, packed: bytes, items: Sequence[Any], ops: bytes) -> list[Any]:
    """The results of a chunk, computed in a worker that first receives the custom ops; `packed` is common to all chunks."""
    install_ops(ops)
    return list(function(_unpacked(packed), items))


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Any:
    return pickle.loads(packed)


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
    return map(function, items)
