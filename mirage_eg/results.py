"""What a run gives: µGraphs with all that is known of them, and the report; the records that its stages hand on."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Lock
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
    """What the compiler said of a µGraph, kernel by kernel; of the whole, the largest counts and the first error."""

    target: str
    kernels: tuple[KernelCompile, ...]

    @property
    def ok(self) -> bool:
        return all(kernel.ok for kernel in self.kernels)

    @property
    def error(self) -> str | None:
        return next((kernel.error for kernel in self.kernels if not kernel.ok), None)

    @property
    def shared_memory(self) -> int | None:
        return _largest(kernel.shared_memory for kernel in self.kernels)

    @property
    def registers(self) -> int | None:
        return _largest(kernel.registers for kernel in self.kernels)

    @property
    def spills(self) -> int | None:
        return _largest(kernel.spills for kernel in self.kernels)

    def data(self) -> dict[str, Any]:
        """In JSON's types, as the report has it."""
        most = {"shared_memory": self.shared_memory, "registers": self.registers, "spills": self.spills}
        return {"target": self.target, "ok": self.ok, **most, "error": self.error, "kernels": list(map(asdict, self.kernels))}


def _largest(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


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
        begin = perf_counter()
        self.observer(name, 0, None, "")
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - begin

    def total(self) -> float:
        return perf_counter() - self.start
