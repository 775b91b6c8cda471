"""Searches of several segments at once: each whole, in a worker process, while this process searches another one.

A search here uses all workers, and waits for them most of the time: what it asks for next depends on what they find. While this
process does something else, such as Inductor's compilation, workers search all segments: a thread here would take the
interpreter from it. Afterwards this process is the gate, and workers search on. A run that tunes needs the GPU of this
process, which gets what a worker has searched, and its result without tuning, for the case that there is no time left here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, Any

from mirage_eg.backends.evaluator.cpu_threads import OverdueError
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.deadline import NEVER, Deadline, after
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.executors import Workers, shared_processes
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
    """What was found for the regions of a program that is to be tuned, and the result without tuning."""

    regions: "Sequence[RegionSearch]"
    untuned: Result


class BegunSearches:
    """Searches by their names: of the first one here, and of others by workers; half of these stay with the search here.

    `apart` from this process, which does something else meanwhile, workers search the first one, too: all but one of them, in
    parts by the ops of the programs. A worker that has found one begins the next, and each search has at most twice its part,
    by its work, of the seconds that they have `until` all end. Where the search `tunes`, workers do the rest of it. `names`: of
    the searches that programs wait for.
    """

    def __init__(
        self,
        workers: Workers,
        searches: Mapping[str, Search],
        names: Mapping[Graph, str],
        tunes: bool = False,
        apart: bool = False,
        until: Deadline = NEVER,
    ) -> None:
        self._workers, self._tunes, self._apart, self._lock = workers, tunes, apart, RLock()
        self.until = until
        self._most = max(1, workers.count - 1) if apart else may_begin(workers)
        self._ops = sum(len(program.ops) for _, program, *_ in searches.values()) if apart else 0
        self._waiting, self._names = dict([*searches.items()][0 if apart else 1 :]) if self._most else {}, names
        self._running: dict[str, Future[list[Any]]] = {}  # the result; of one that tunes, what was found ahead
        self._ahead: dict[str, FoundAhead] = {}
        self._continue()

    def next_of(
        self, programs: Sequence[Graph], until: Deadline, gain: Callable[[Graph, Result], float] = lambda program, found: 0.0
    ) -> Graph:
        """The program whose segment is next: the first of the largest `gain` whose search is done, as the budget may end before
        all are timed; else the first that no worker searches or will search.

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

    def _gain(self, program: Graph, future: Future[list[Any]], gain: Callable[[Graph, Result], float]) -> float:
        if future.cancelled() or future.exception() is not None:
            return 0.0
        [found] = future.result()
        return gain(program, found.untuned if self._tunes else found)

    def result(self, name: str, until: Deadline = NEVER) -> Result | None:
        """The result of a search, when it is there; None if it was not begun, and will not be, or is to be done here.

        Raises OverdueError: it is not there at `until`.
        """
        with self._lock:
            self._waiting.pop(name, None)
            future = self._running.pop(name, None)
        try:
            [found] = [None] if future is None else future.result(None if until == NEVER else max(0.0, until.left()))
        except TimeoutError:
            raise OverdueError from None
        except (BrokenExecutor, CancelledError):  # a worker died: the search here may say why
            found = None
        self._continue()
        if self._tunes and found is not None:
            self._ahead[name] = found
            return None
        return found

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
            while self._waiting and sum(not future.done() for future in self._running.values()) < self._most:
                name = next(iter(self._waiting))
                function = _searched_ahead if self._tunes else _searched
                options = self._options(*self._waiting[name])
                title, program, _, wanted = self._waiting.pop(name)
                try:
                    future = self._workers.submit(function, None, (title, program, options, wanted))
                except BrokenExecutor:
                    self._waiting.clear()
                    return
                self._running[name] = future
                if self._apart:  # else this process searches the next one itself
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


def _searched_ahead(common: None, searches: Sequence[Search]) -> Iterator["FoundAhead"]:
    """What searches that tune find, and their results without tuning or a GPU, both within a budget."""
    from mirage_eg.pipeline.optimize import optimize_wanted, search_ahead

    for name, program, options, wanted in searches:
        until = NEVER if options.budget is None else after(options.budget)
        with shared_processes():
            ahead = search_ahead(name, program, options, on_gpu=True)
            left = options.budget if until == NEVER else max(until.left(), 1e-6)
            without_gpu = replace(options, budget=left, device="cpu")
            yield FoundAhead(ahead, optimize_wanted(name, program, without_gpu, wanted, ahead=ahead))


def _searched(common: None, searches: Sequence[Search]) -> Iterator[Result]:
    """The results of searches."""
    from mirage_eg.pipeline.optimize import optimize_wanted

    for name, program, options, wanted in searches:
        yield optimize_wanted(name, program, options, wanted)
