"""What a run gives: µGraphs with all that is known of them, and the report; the records that its stages hand on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from mirage_eg.backends.compile import KernelCompile
from mirage_eg.ir.graph import Graph
from mirage_eg.search import SearchResult
from mirage_eg.space import Chain, Structure
from mirage_eg.trace import Traced
from mirage_eg.tune import Record
from mirage_eg.verdict import FloatCheck, Verdict

Observer = Callable[[str, int, int | None, str], None]
Plan = Structure | Chain


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """What the compiler said of a whole µGraph: the largest shared memory and registers, all spills, the first error."""

    target: str
    ok: bool
    shared_memory: int | None
    registers: int | None
    spills: int | None
    error: str | None
    kernels: tuple[KernelCompile, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One µGraph that passed verification; `proved` says that the indexed laws show it equal to the program."""

    graph: Graph
    source: str
    predicted_us: float
    measured_us: float | None
    verdict: Verdict
    float_check: FloatCheck
    compile: CompileRecord
    proved: bool
    fused: bool


@dataclass(frozen=True, slots=True)
class Result:
    """The best µGraphs, best first, the report of the run, and every measurement of the tuning, if there was a GPU."""

    candidates: tuple[Candidate, ...]
    report: dict[str, Any]
    measurements: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranked:
    """A µGraph with the cost model's time; `proved` by the search, if its domain proves."""

    graph: Graph
    predicted_us: float
    proved: bool
    fused: bool


@dataclass(frozen=True, slots=True)
class Instances:
    """The µGraphs of one structure, cheapest first: as many as are asked for, of `count`."""

    ranked: tuple[Ranked, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Searched:
    """What the search of one split found, and where candidates ended if that was asked for."""

    found: SearchResult
    traced: tuple[Traced, ...] = ()


class Watch:
    """Seconds per stage, and the way to the observer."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.seconds, self.start = observer, dict[str, float](), perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        self.observer(name, 0, None, "")
        yield
        self.seconds[name] = perf_counter() - begin

    def total(self) -> float:
        return perf_counter() - self.start
