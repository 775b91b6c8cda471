"""The report of a run: frozen records, built once at its end, and their form in JSON (report.json)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from math import isfinite
from typing import Any

FORMAT, VERSION = "mirage_eg report", 2


@dataclass(frozen=True, slots=True)
class EGraphs:
    """The e-graphs of all splits together."""

    count: int
    nodes: int
    classes: int
    saturated: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class EGraph:
    """The e-graph of one split: its growth in e-nodes by iteration, and the matches of each law."""

    split: str
    nodes: int
    classes: int
    saturated: bool
    stopped: str | None
    iterations: int
    seconds: float
    growth: tuple[int, ...]
    matches: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Search:
    """The search of the whole program as one segment, and the candidates that were verified."""

    visited: int
    pruned: Mapping[str, int]
    structures: int
    split_reductions: int
    complete: bool
    seconds: float
    candidates: int
    instances: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on the first µGraph, and the numbers of µGraphs and structures that passed and failed."""

    trials: int
    p: int
    q: int
    error_bound: float | None
    bound_reason: str
    evidence: tuple[str, ...]
    laws: tuple[str, ...]
    partial: tuple[str, ...]
    accepted: int
    rejected: int
    structures_accepted: int
    structures_rejected: int


@dataclass(frozen=True, slots=True)
class Best:
    """The first µGraph; `source` is the file that it was written to."""

    kernels: int
    grid: tuple[tuple[int, ...], ...]
    loop: tuple[int, ...]
    threads: tuple[int, ...]
    predicted_us: float
    measured_us: float | None
    fused: bool
    float_error: float
    source: str | None = None


@dataclass(frozen=True, slots=True)
class FloatSummary:
    """The float check of a µGraph."""

    ok: bool
    error: float
    overflows: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class MuGraphSummary:
    """One µGraph of the result; `candidates/RANK.json` and `.py` have the rest."""

    kernels: int
    fused: bool
    grid: tuple[tuple[int, ...], ...]
    loop: tuple[int, ...]
    threads: tuple[int, ...]
    verdict: str
    proved: bool
    partial: tuple[str, ...]
    float_check: FloatSummary
    compiled: bool
    predicted_us: float
    measured_us: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """The kernels of a µGraph and their predicted microseconds."""

    kernels: int
    predicted_us: float


@dataclass(frozen=True, slots=True)
class PartSummary:
    """One segment of a plan: its ops, the values of the program that it reads and writes, and its kernels."""

    ops: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    kernels: int
    predicted_us: float
    library: bool
    proved: bool
    verdict: str


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """The partitions that were searched; `kernels` are the parts of the plans among the result's µGraphs."""

    states: int
    segments: int
    left_out: tuple[str, ...]
    searched: int
    complete: bool
    bound_us: float
    few: int
    bound_of_few_us: float
    visited: int
    pruned: Mapping[str, int]
    structures: int
    plans: tuple[Cost, ...]
    kernels: tuple[tuple[PartSummary, ...], ...]


@dataclass(frozen=True, slots=True)
class BufferSummary:
    """One buffer of the arena; `steps` are the nodes of the µGraph that first and last use it."""

    name: str
    bytes: int
    offset: int
    steps: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Memory:
    """The arena of the first µGraph; each buffer's bytes are counted in whole alignments of the arena.

    Results of library kernels are allocated by the library, outputs by the caller; neither is among the buffers.
    """

    arena_bytes: int
    sum_bytes: int
    lower_bound_bytes: int
    proved_bound_bytes: int
    optimal: bool
    buffers: tuple[BufferSummary, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why no fused kernel was found: candidates by prune reason, the last stage that any reached, and two sentences."""

    visited: int
    ended: Mapping[str, int]
    stage: str
    nearest_miss: str
    change: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of a run; `source` is where the program came from, `computed` when the result was (ISO 8601, UTC).

    `compile`, `simplification`, `optimizer`, `gpu` and `tuning` are in JSON's types, as their rooms give them.
    """

    program: str
    domain: str
    theories: Mapping[str, str]
    device: str
    target: str
    gpu: Mapping[str, Any]
    egraph: EGraphs
    egraphs: tuple[EGraph, ...]
    search: Search
    verify: Verification
    compile: Mapping[str, Any]
    best: Best
    mugraphs: tuple[MuGraphSummary, ...]
    ranked_by: str
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    peak_mib: int
    versions: Mapping[str, str]
    seed: int
    partition: PartitionSummary
    per_op: Cost
    simplification: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    memory: Memory
    explanation: Diagnosis | None
    tuning: Mapping[str, int] | None = None
    cache: str = "off"
    computed: str | None = None
    source: str | None = None

    def written(self, source: str, best: str) -> "RunReport":
        """The report as written to disk: of the program `source`, with the file of the first µGraph."""
        return replace(self, source=source, best=replace(self.best, source=best))

    def data(self) -> dict[str, Any]:
        """The report in JSON's types, with the version of its format."""
        data: dict[str, Any] = plain(self)
        return {"format": FORMAT, "version": VERSION} | data


def plain(value: Any) -> Any:
    """The value in JSON's types; NaN and infinities, which JSON lacks, become null."""
    match value:
        case float():
            return value if isfinite(value) else None
        case Enum():
            return value.value
        case Mapping():
            return {key: plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [plain(entry) for entry in value]
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value
