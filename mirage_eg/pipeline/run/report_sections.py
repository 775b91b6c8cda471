"""The sections of the report of a run: frozen records, built once at its end by `pipeline.make_report`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.ir.shapes import Shape

Section = TypeVar("Section")


def section(kind: type[Section], *records: object, **computed: Any) -> Section:
    """A section: its fields are `computed`, or those of the first record of a stage that has the name."""

    def copied(name: str) -> Any:
        return getattr(next((it for it in records if hasattr(it, name)), records[0]), name)

    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: computed[name] if name in computed else copied(name) for name in names})


@dataclass(frozen=True, slots=True)
class EGraphs:
    """The e-graphs of all splits together."""

    count: int
    nodes: int
    classes: int
    saturated: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class EGraphSize:
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
    added: tuple[tuple[str, int], ...] = ()  # e-nodes by law, where laws may pause (--egraph-backoff)
    paused: tuple[str, ...] = ()  # laws that waited at the end


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
    chains: tuple[ProofChain, ...]
    no_chains_because: str | None
    accepted: int
    rejected: int
    structures_accepted: int
    structures_rejected: int
    structures_overflowing: int
    computed_on: str  # the device of the evaluator at full size


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
    compiled: bool | None  # None: not tried, as it cannot be the first
    predicted_us: float
    measured_us: float | None

    @property
    def us(self) -> float:
        """Microseconds: measured where they were, else predicted."""
        return self.predicted_us if self.measured_us is None else self.measured_us


@dataclass(frozen=True, slots=True)
class PredictedCost:
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
    plans: tuple[PredictedCost, ...]
    kernels: tuple[tuple[PartSummary, ...], ...]


@dataclass(frozen=True, slots=True)
class RegionSummary:
    """A region of the program, searched once: its numbers among the regions, the search, and its part of the first µGraph.

    `ops` are primitive, after simplification; those of `in_blocks` are computed by block graphs. `left_out` says what was not
    searched. `seconds` are of all stages before the ranking. `program` and `mugraph` have the format of best.json.
    """

    program: Mapping[str, Any]
    mugraph: Mapping[str, Any]
    occurrences: tuple[int, ...]
    ops: int
    in_blocks: int
    kernels: int
    predicted_us: float
    measured_us: float | None
    verdict: str
    evidence: tuple[str, ...]
    searched: int
    complete: bool
    left_out: tuple[str, ...]
    bound_us: float
    parts: tuple[PartSummary, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class BufferSummary:
    """One buffer of the arena; `steps` are those of its first and last use in the order of launches."""

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
    closest_candidate: str
    change: str


@dataclass(frozen=True, slots=True)
class CompileSummary:
    """How the first µGraph compiled: the largest counts of its kernels, the first error, and each kernel."""

    target: str
    ok: bool
    shared_memory: int | None
    registers: int | None
    spills: int | None
    error: str | None
    kernels: tuple[KernelCompile, ...]


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A number of ops, before and after simplification."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One pass that changed the program: the lines of the program before and after."""

    pass_: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SimplificationSummary:
    """The simplification: ops whose number changed, and the passes; both programs where they differ, else None."""

    changed: bool
    ops: Mapping[str, BeforeAfter]
    count: BeforeAfter
    passes: tuple[PassSummary, ...]
    laws: Mapping[str, int]
    before: tuple[str, ...] | None
    after: tuple[str, ...] | None
    stopped: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class LayoutSummary:
    """The layout of one intermediate: dims in memory, slowest first, and microseconds of its accesses."""

    value: int
    shape: Shape
    order: tuple[int, ...]
    strides: Shape
    accesses_us: float
    row_major_us: float


@dataclass(frozen=True, slots=True)
class LayoutsSummary:
    """The chosen layouts and their gain, in microseconds by the cost model."""

    objective_us: float
    row_major_us: float
    saved_us: float
    accesses_saved_us: float
    optimal: bool
    intermediates: tuple[LayoutSummary, ...]


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """The most live bytes in the given order and in the chosen one, and a proved lower bound for every order."""

    before: int
    live_bytes: int
    bound: int


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """The order of the kernels, and of the ops of each block graph."""

    kernels: LiveBytes
    blocks: tuple[LiveBytes, ...]
    optimal: bool


@dataclass(frozen=True, slots=True)
class ThreadGraphsSummary:
    """The ops of one block graph before and after chains of elementwise ops became thread graphs, and these chains."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    chains: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class OptimizerSummary:
    """The decisions of the passes of the µGraph optimizer on the first µGraph."""

    layouts: LayoutsSummary
    order: OrderSummary
    thread_graphs: tuple[ThreadGraphsSummary, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class RewriteSummary:
    """A program, or a region, rewritten by graph substitutions; `folded` are the results of its prologue, computed once.

    `ops`: kernels op by op in primitive ops, as written and rewritten. `rewritten_us`: the predicted time of the best µGraph
    of the rewritten program; None where none was searched, as by `lower_bound_us` none is faster than the best as written.

    `extracted_us`: the extracted program by the prices of its kernels. No program of the e-graph is below `extracted_bound_us`
    whose kernels have one product or reduction each, or were searched; `optimal`: the two are within 2 %. In `rounds`
    extractions `kernels_searched` kernels were searched.
    """

    laws: Mapping[str, int]
    enodes: int
    optimal: bool
    extracted_us: float
    extracted_bound_us: float
    rounds: int
    kernels_searched: int
    ops: BeforeAfter
    folded: tuple[str, ...]
    prologue_bytes: int
    prologue_us: float
    lower_bound_us: float
    as_written_us: float
    rewritten_us: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TuningSummary:
    """The numbers of candidates that tuning tried, timed, and dropped.

    `rank_correlation` is Spearman's, of predicted times of µGraphs with those of their fastest schedules; None for fewer than
    three.
    """

    tried: int
    timed: int
    failed: int
    rank_correlation: float | None = None
