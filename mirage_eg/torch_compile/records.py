"""Records of what the backend did with each graph: segments with the gate's decision, nodes outside, fallbacks."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any

from mirage_eg.frontend.imported import Outside
from mirage_eg.ir.plurals import counted

LOGGER = logging.getLogger("mirage_eg.torch")


class Decision(StrEnum):
    """What became of a segment."""

    USED = "used"
    SLOWER = "slower"  # than Inductor's code, by the gate
    WRONG = "wrong"  # beyond the allowed error, by the gate
    UNDECIDED = "undecided"  # torch itself is too far from float64
    FAILED = "failed"  # a stage of the search or a kernel refused it
    ERROR = "error"  # an unexpected error of this package
    NOT_FUSED = "not fused"  # the search found library kernels only
    BUDGET = "budget"  # its share was spent
    NOT_SEARCHED = "not searched"  # search="offline", and the cache has nothing
    SMALL = "small"  # fewer ops than min_ops
    DEVICES = "several devices"
    NO_GPU = "no GPU"  # and the gate compares times


_NOT_FINAL = (Decision.BUDGET, Decision.FAILED, Decision.ERROR, Decision.NOT_SEARCHED)


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One segment of a graph; `ours_us` and `other_us` are predicted, or `measured` against Inductor, then also cold.

    `error` and `torch_error` are the largest differences from float64 on random inputs, of the largest element. `summary`
    describes the kernels; `tuned`: their schedules were chosen by timing.
    """

    key: str
    ops: int
    decision: Decision
    reason: str
    kernels: int = 0
    ours_us: float | None = None
    other_us: float | None = None
    measured: bool = False
    error: float | None = None
    torch_error: float | None = None
    from_cache: bool = False
    ours_cold_us: float | None = None
    other_cold_us: float | None = None
    tuned: bool = False
    summary: str = ""


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One graph that Dynamo passed on; `fallback` is the reason why Inductor compiled it whole, if it did.

    `unexpected`: the reason is an error of this package. `ours_us` and `other_us`: of the whole graph, with segments and
    without, where both were timed; `whole` says how.
    """

    number: int
    nodes: int
    segments: tuple[SegmentRecord, ...] = ()
    outside: tuple[Outside, ...] = ()
    fallback: str | None = None
    unexpected: bool = False
    whole: str = ""
    ours_us: float | None = None
    other_us: float | None = None

    @property
    def is_final(self) -> bool:
        """Whether another run would decide likewise: no budget and no error ended a search."""
        return self.fallback is None and not any(it.decision in _NOT_FINAL for it in self.segments)

    @property
    def used(self) -> int:
        """The segments that run our kernels."""
        return sum(it.decision is Decision.USED and it.key not in _FAILED_CALLS for it in self.segments)

    def rows(self) -> list[tuple[str, ...]]:
        """Rows of a table: segments, then ops outside with their reasons."""
        if self.fallback is not None:
            return [(f"graph {self.number}", f"{self.nodes}", "to Inductor", "", self.fallback)]
        rows: list[tuple[str, ...]] = []
        for place, it in enumerate(self.segments, 1):
            name = f"graph {self.number}, segment {place}"
            rows.append((name, str(it.ops), it.decision, _times(it), it.reason))
            for span, one in buckets_of(it.key).items():
                rows.append((f"{name}, {span}", str(it.ops), one.decision, _times(one), one.reason))
            if it.key in _FAILED_CALLS:
                rows.append((f"{name}, a call", str(it.ops), Decision.ERROR, "", _FAILED_CALLS[it.key]))
        if self.whole:
            decision = "" if self.ours_us is None else Decision.USED if self.used else Decision.SLOWER
            rows.append((f"graph {self.number}", str(self.nodes), decision, _times(self), self.whole))
        counts = Counter((it.op, it.reason) for it in self.outside)
        return rows + [(f"graph {self.number}, {op}", str(count), "outside", "", why) for (op, why), count in counts.items()]


@dataclass(frozen=True, slots=True)
class Compilation:
    """What the backend did with a model: its graphs in the order of compilation; printed as a table."""

    graphs: tuple[GraphRecord, ...]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The reasons of graphs that Inductor compiled whole."""
        return tuple(graph.fallback for graph in self.graphs if graph.fallback is not None)

    @property
    def used(self) -> int:
        """The segments that run our kernels."""
        return sum(graph.used for graph in self.graphs)

    @property
    def unexpected(self) -> int:
        """The graphs and segments that are left to torch after an error of this package, and segments whose call failed."""
        segments = [segment for graph in self.graphs for segment in graph.segments]
        buckets = [one for key in {it.key for it in segments} for one in buckets_of(key).values()]
        failed = {it.key for it in segments} & _FAILED_CALLS.keys()
        errors = sum(it.decision is Decision.ERROR for it in (*segments, *buckets))
        return sum(graph.unexpected for graph in self.graphs) + errors + len(failed)

    def __str__(self) -> str:
        if not self.graphs:
            return "no graph: Dynamo compiled nothing of this call; TORCH_LOGS=graph_breaks says why"
        head = ("", "ops", "", "µs: ours, without", "")
        rows = [head, *(row for graph in self.graphs for row in graph.rows())]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]).rstrip()
            for row in rows
        ]
        if self.unexpected:
            lines.append(f"unexpected errors: {self.unexpected}")
        return "\n".join(lines)


def _times(it: SegmentRecord | GraphRecord) -> str:
    if it.ours_us is None or it.other_us is None:
        return ""
    measured = isinstance(it, GraphRecord) or it.measured
    return f"{it.ours_us:.1f}, {it.other_us:.1f} {'measured' if measured else 'predicted'}"


_LOGGED_DECISIONS = (Decision.WRONG, Decision.UNDECIDED, Decision.FAILED, Decision.ERROR)
_GRAPHS: list[GraphRecord] = []
_LOGGED: set[str] = set()


def add_record(record: GraphRecord) -> None:
    """Keep a record, and log a reason once."""
    _GRAPHS.append(record)
    reasons = [record.fallback] if record.fallback else []
    reasons += [it.reason for it in record.segments if it.decision is Decision.NO_GPU]
    reasons += [
        f"a segment of {counted(it.ops, 'op')}: {it.reason}" for it in record.segments if it.decision in _LOGGED_DECISIONS
    ]
    for reason in reasons:
        if reason not in _LOGGED:
            _LOGGED.add(reason)
            LOGGER.warning("left to Inductor: %s", reason)


_BUCKETS: dict[str, dict[str, SegmentRecord]] = {}


def add_bucket(key: str, span: str, record: SegmentRecord) -> None:
    """Keep the record of one bucket of sizes of a segment."""
    _BUCKETS.setdefault(key, {})[span] = record
    if record.decision in _LOGGED_DECISIONS:
        LOGGER.warning("left to torch: a segment of %s, %s: %s", counted(record.ops, "op"), span, record.reason)


def buckets_of(key: str) -> dict[str, SegmentRecord]:
    """The records of the buckets of a segment that were used so far, by their sizes."""
    return dict(_BUCKETS.get(key, {}))


_FAILED_CALLS: dict[str, str] = {}  # reasons by the keys of segments


def add_failed_call(key: str, reason: str) -> None:
    """Keep the reason why torch computes a segment after a call of its kernels, and log it."""
    _FAILED_CALLS[key] = reason
    LOGGER.warning("left to torch: a call of segment %s: %s", key[:12], reason)


def graph_records() -> tuple[GraphRecord, ...]:
    """The records of all graphs of this process."""
    return tuple(_GRAPHS)


_WATCHES: list[set[int]] = []


@contextmanager
def watched_graphs() -> Iterator[set[int]]:
    """The numbers of the graphs that are called meanwhile."""
    called: set[int] = set()
    _WATCHES.append(called)
    try:
        yield called
    finally:
        _WATCHES.remove(called)


def noting_calls(
    compiled: Callable[..., Any], records: Sequence[GraphRecord], after_first: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """The function of compiled graphs, whose calls `watched_graphs` notes; each call but the first calls `after_first`."""
    numbers, was_called = [record.number for record in records], False

    @wraps(compiled)
    def run(*arguments: Any) -> Any:
        nonlocal was_called
        if was_called and after_first is not None:
            after_first()
        was_called = True
        for called in _WATCHES:
            called.update(numbers)
        return compiled(*arguments)

    return run


def new_number() -> int:
    """The number of the next graph."""
    return len(_GRAPHS) + 1


def change_records(kept: int, change: Callable[[GraphRecord], GraphRecord]) -> None:
    """Replace all records but the first `kept`."""
    _GRAPHS[kept:] = map(change, _GRAPHS[kept:])


def withdraw_records(kept: int) -> None:
    """Forget the records of graphs that are compiled again: all but the first `kept`."""
    del _GRAPHS[kept:]


def forget_records() -> None:
    """Begin anew."""
    _GRAPHS.clear()
    _BUCKETS.clear()
    _FAILED_CALLS.clear()
    _LOGGED.clear()
