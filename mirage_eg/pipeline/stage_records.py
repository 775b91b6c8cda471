"""The records that the stages of a run hand on, and the watch that times them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import perf_counter

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.stopping import raise_if_stopped
from mirage_eg.search.search import SearchResult
from mirage_eg.search.structure import SplitReduction, Structure
from mirage_eg.search.trace import Traced
from mirage_eg.verify.verdict import Observer

Plan = Structure | SplitReduction


@dataclass(frozen=True, slots=True)
class Ranked:
    """A µGraph with the cost model's time; `proved` by the search, if its domain proves."""

    graph: Graph
    predicted_us: float
    proved: bool
    fused: bool


@dataclass(frozen=True, slots=True)
class Instances:
    """The µGraphs of one structure, cheapest first: as many as are asked for, of `count` that were built.

    `cut`: the budget was spent before there were that many.
    """

    ranked: tuple[Ranked, ...]
    count: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Searched:
    """What the search of one split found, and where candidates ended if that was asked for."""

    found: SearchResult
    traced: tuple[Traced, ...] = ()


class Watch:
    """Seconds per stage, and the way to the observer, who hears of one thing at a time; stages may overlap."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self._telling = observer, Lock()
        self.seconds, self.start = dict[str, float](), perf_counter()

    def observer(self, stage: str, done: int, total: int | None, text: str) -> None:
        """Tell the observer."""
        with self._telling:
            self._observer(stage, done, total, text)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        raise_if_stopped()
        begin = perf_counter()
        self.observer(name, 0, None, "")
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - begin

    def total(self) -> float:
        return perf_counter() - self.start
