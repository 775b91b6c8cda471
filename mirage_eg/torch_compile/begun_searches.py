"""Searches of several segments at once: each whole, in a worker process, while this process searches another one.

A search here uses all workers, and waits for them most of the time: what it asks for next depends on what they find. While this
process does something else, such as Inductor's compilation, workers search all segments: a thread here would take the
interpreter from it. Afterwards this process is the gate, and workers search on. A run that tunes needs the GPU of this
process, which gets what a worker has searched as soon as it is there. A worker verifies it meanwhile, without tuning, for the
case that there is no time left here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from threading import RLock
from typing import TYPE_CHECKING, Any

from mirage_eg.backends.evaluator.cpu_threads import OverdueError
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.deadline import NEVER, Deadline, after
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Result, Wanted
from mirage_eg.torch_compile.segment_keys import Key, form_of_key, hash_of, longer_of, request_for, title_of, wanted_by
from mirage_eg.torch_compile.settings import Settings

if TYPE_CHECKING:
    from mirage_eg.pipeline.region_records import RegionSearch

_IN_TIME = 0.9  # of the seconds that are left when a search is sent: processes start, and results are read
Search = tuple[str, Graph, Options, Wanted]  # with the name of its run


@dataclass(frozen=True, slots=True)
class FoundAhead:
    """What was found for the regions of a program that is to be tuned, and the result without tuning, of another process."""

    regions: "Sequence[RegionSearch]"
    verified: Future[list[Any]] | None

    def untuned(self, until: Deadline) -> Result | None:
        """The result without tuning; None if its process died. Raises OverdueError: it is not there at `until`."""
        return None if self.verified is None else _of_worker(self.verified, until)


class BegunSearches:
    """Searches by their names: of the first one here, and of others by workers; half of these stay with the search here.

    `apart` from this process, which does something else meanwhile, workers search the first one, too: all but one of them, in
    parts by the ops of the programs. A worker that has found one begins the next, and each search has at most twice its part,
    by its work, of the seconds that they have `until` all end. Where segments have seconds to `tune`, workers search ahead, and
    verify without tuning, which may take these seconds, too. `names`: of the searches that programs wait for.
    """

    def __init__(
        self,
        workers: Workers,
        searches: Mapping[str, Search],
        names: Mapping[Graph, str],
        tune: float = 0.0,
        apart: bool = False,
        until: Deadline = NEVER,
    ) -> None:
        self._workers, self._searches, self._tune, self._apart, self._lock = workers, searches, tune, apart, RLock()
        self.until = until
        self._most = max(1, workers.count - 1) if apart else may_begin(workers)
        self._ops = sum(len(program.ops) for _, program, *_ in searches.values()) if apart else 0
        self._waiting, self._names = dict([*searches.items()][0 if apart else 1 :]) if self._most else {}, names
        self._running: dict[str, Future[list[Any]]] = {}  # the result; of one that tunes, what was found ahead
        self._ends: dict[str, Deadline] = {}  # when a search that tunes and its verification end
        self._verified: dict[str, Future[list[Any]]] = {}  # of what was found ahead
        self._ahead: dict[str, FoundAhead] = {}
        self._continue()

    def next_of(
        self, programs: Sequence[Graph], until: Deadline, gain: Callable[[Graph, float], float] = lambda program, us: 0.0
    ) -> Graph:
        """The program whose segment is next: the first of the largest `gain` by its predicted time whose search is done, as the
        budget may end before all are timed; else the first that no worker searches or will search.

        Where workers search all of them it waits for one, no longer than `until`.
        """
        with self._lock:
            running = {it: self._running[name] for it in programs if (name := self._names.get(it, "")) in self._running}
            waiting = {it for it in programs if self._apart and self._names.get(it) in self._waiting}
        if running and len(running) + len(waiting) == len(programs):
            wait(running.values(), None if until == NEVER else max(0.0, until.left()), FIRST_COMPLETED)
        free = [it for it in programs if it not in running and it not in waiting]
        done = [it for it in programs if it in running and running[it].done()]
        return max(done, key=lambda it: self._gain(it, running[it], gain)) if done else (free or programs)[0]

    def _gain(self, program: Graph, future: Future[list[Any]], gain: Callable[[Graph, float], float]) -> float:
        if future.cancelled() or future.exception() is not None:
            return 0.0
        [found] = future.result()
        us = sum(region.least_us for region in found) if self._tune else found.gated_us
        return gain(program, us) if isfinite(us) else inf  # then it needs no time of the gate

    def result(self, name: str, until: Deadline = NEVER) -> Result | None:
        """The result of a search, when it is there; None if it was not begun, and will not be, or is to be done here.

        Raises OverdueError: it is not there at `until`.
        """
        with self._lock:
            self._waiting.pop(name, None)
            future = self._running.pop(name, None)
        found = None if future is None else _of_worker(future, until)  # where it died, the search here may say why
        if self._tune and future is not None and found is not None:
            self._verify(name, future)
            self._ahead[name] = FoundAhead(found, self._verified.get(name))
        self._continue()
        return None if self._tune else found

    def ahead(self, name: str) -> "FoundAhead | None":
        """What a worker found of a search that tunes."""
        return self._ahead.get(name)

    def close(self) -> None:
        """Begin no more."""
        with self._lock:
            self._waiting.clear()

    def _continue(self, done: object = None) -> None:
        """Begin as many of the waiting ones as may run."""
        with self._lock:
            while self._waiting and self._at_work() < self._most:
                name = next(iter(self._waiting))
                function = _searched_ahead if self._tune else _searched
                options = self._options(*self._waiting[name])
                title, program, _, wanted = self._waiting.pop(name)
                try:
                    future = self._workers.submit(function, None, (title, program, options, wanted))
                except BrokenExecutor:
                    self._waiting.clear()
                    return
                self._running[name] = future
                if self._tune:
                    self._ends[name] = NEVER if options.budget is None else after(options.budget + self._tune)
                    future.add_done_callback(partial(self._verify, name))
                if self._apart:  # else this process searches the next one itself
                    future.add_done_callback(self._continue)

    def _at_work(self) -> int:
        """The workers that search or verify."""
        return sum(not future.done() for future in (*self._running.values(), *self._verified.values()))

    def _verify(self, name: str, searched: Future[list[Any]]) -> None:
        """Begin to verify what was searched ahead, once."""
        with self._lock:
            if name in self._verified or searched.cancelled() or searched.exception() is not None:
                return
            [found], (title, program, options, wanted) = searched.result(), self._searches[name]
            until = self._ends[name]
            left = None if until == NEVER else max(until.left(), 1e-6)
            options = replace(options, jobs=max(1, self._most), budget=left, device="cpu")
            with suppress(BrokenExecutor):
                item = title, program, options, wanted, found
                self._verified[name] = future = self._workers.submit(_verified_ahead, None, item)
                if self._apart:
                    future.add_done_callback(self._continue)

    def _options(self, title: str, program: Graph, options: Options, wanted: Wanted) -> Options:
        """The options of a search that begins now: its jobs, and its part of the seconds."""
        ops = len(program.ops)
        options = replace(options, jobs=max(1, self._most * ops // self._ops if self._ops else 1))
        if not self._apart or self.until == NEVER:
            return options
        parts = sum(_work(program) for _, program, *_ in self._waiting.values()) / self._most
        seconds = self.until.left() * min(_IN_TIME, 2 * _work(program) / parts)
        return replace(options, budget=max(min(options.budget or inf, seconds), 1e-6))


def _work(program: Graph) -> int:
    """The work of a search, in ops: what each needs, however small, and those of the program."""
    return HEURISTICS.ops_of_a_search + len(program.ops)


def may_begin(workers: Workers) -> int:
    """The most searches that workers begin at once: half of them stay with the search here."""
    return max(0, workers.count // 2 - 1)


def start(workers: Workers) -> None:
    """Start the processes, which import what searches need while this one prepares its own."""
    for _ in range(workers.count):
        workers.submit(_prepared, None, None)


def searches_of(
    asked: Sequence[tuple[Graph, Collection[int]]],
    settings: Settings,
    until: Deadline,
    other_sizes: bool,
    may_have: Callable[[Key, str], bool],
) -> tuple[dict[str, Search], dict[Graph, str]]:
    """The searches that programs need, by the names of their keys; not those that may be there, of which `may_have` knows.

    Each program has the numbers of its weights. Programs of one form need one search, whose name each of them has. All end
    `until`.
    """
    found: dict[str, Search] = {}
    forms, names = dict[str, str](), dict[Graph, str]()
    for program, weights in asked if settings.search != "offline" else ():
        with suppress(MirageError):  # which the search here will say
            options, _, key, searched = request_for(program, settings, until)
            form = form_of_key(key, program, weights)
            if settings.search != "always" and may_have(key, form):
                continue
            if form in forms:
                names[program] = forms[form]
                continue
            longer = longer_of(searched, settings, weights) if other_sizes else None
            if longer is not None:
                searched = longer
                options, _, key, _ = request_for(longer, settings, until)
            name = names[program] = forms[form] = hash_of(key)
            serves_others = longer is not None or bool(dims_of(program))
            found[name] = title_of(name), searched, options, wanted_by(settings, serves_others)
    return found, names


def _prepared(common: None, items: Sequence[None]) -> Sequence[None]:
    import mirage_eg.pipeline.optimize  # noqa: F401 - for the searches to come

    return items


def _of_worker(future: Future[list[Any]], until: Deadline) -> Any:
    """What a worker found; None if it died. Raises OverdueError: it is not there at `until`."""
    try:
        [found] = future.result(None if until == NEVER else max(0.0, until.left()))
    except TimeoutError:
        raise OverdueError from None
    except (BrokenExecutor, CancelledError):
        return None
    return found


def _searched_ahead(common: None, searches: Sequence[Search]) -> Iterator["Sequence[RegionSearch]"]:
    """What searches that tune find."""
    from mirage_eg.pipeline.optimize import search_ahead

    for name, program, options, _ in searches:
        yield search_ahead(name, program, options, on_gpu=True)


def _verified_ahead(
    common: None, searched: "Sequence[tuple[str, Graph, Options, Wanted, Sequence[RegionSearch]]]"
) -> Iterator[Result]:
    """The results of what was searched ahead, without tuning or a GPU."""
    from mirage_eg.pipeline.optimize import optimize_wanted

    for name, program, options, wanted, ahead in searched:
        yield optimize_wanted(name, program, options, wanted, ahead=ahead)


def _searched(common: None, searches: Sequence[Search]) -> Iterator[Result]:
    """The results of searches."""
    from mirage_eg.pipeline.optimize import optimize_wanted

    for name, program, options, wanted in searches:
        yield optimize_wanted(name, program, options, wanted)
