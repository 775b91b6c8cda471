"""The run that every stage reads, and its watch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter

from mirage_eg.backends.cost.devices import Device
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import EVERYTHING, Wanted
from mirage_eg.pipeline.run.stopping import raise_if_stopped
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.search.trace import Tracer
from mirage_eg.verify.verdict import Observer


class Watch:
    """Seconds per stage, and progress for the observer, one message at a time; stages may overlap."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer, self._lock = observer, Lock()
        self.seconds, self.start = dict[str, float](), perf_counter()

    def observer(self, stage: str, done: int, total: int | None, text: str) -> None:
        """Report progress."""
        if self._observer is not None:
            with self._lock:
                self._observer(stage, done, total, text)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the body as part of a stage."""
        raise_if_stopped()
        begin = perf_counter()
        self.observer(name, 0, None, "")
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - begin

    def total(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """One optimization: what all its stages share. It ends `until`; each stage ends at its part of that time.

    `is_part`: its µGraphs are joined with those of other parts of a program.
    """

    name: str
    program: Graph
    options: Options
    rulebook: Rulebook
    device: Device
    work: Work
    on_gpu: bool = False
    watch: Watch = field(default_factory=Watch)
    tracer: Tracer | None = None
    wanted: Wanted = EVERYTHING
    until: Deadline = NEVER
    given: Graph | None = None  # where `program` has constants in place of values of the given one
    is_part: bool = False
