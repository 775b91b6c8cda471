"""The report of a run: one frozen record, built once at its end, and its form in JSON (report.json)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.pipeline.run.heuristics import Heuristics
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.report_sections import (
    Best,
    CompileSummary,
    Diagnosis,
    EGraphs,
    EGraphSize,
    Memory,
    MuGraphSummary,
    OptimizerSummary,
    PartitionSummary,
    PredictedCost,
    RegionSummary,
    RewriteSummary,
    Search,
    SimplificationSummary,
    TuningSummary,
    Verification,
)

FORMAT, VERSION = "mirage_eg report", 2


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of a run; `source` is where the program came from, `computed` when the result was (ISO 8601, UTC)."""

    program: str
    domain: str
    theories: Mapping[str, str]
    device: str
    target: str
    gpu: Device
    egraph: EGraphs
    egraphs: tuple[EGraphSize, ...]
    search: Search
    verify: Verification
    compile: CompileSummary
    best: Best
    mugraphs: tuple[MuGraphSummary, ...]
    ranked_by: str
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    peak_mib: int
    versions: Mapping[str, str]
    seed: int
    partition: PartitionSummary
    per_op: PredictedCost
    simplification: SimplificationSummary
    optimizer: OptimizerSummary
    memory: Memory
    explanation: Diagnosis | None
    heuristics: Heuristics
    tuning: TuningSummary | None = None
    regions: tuple[RegionSummary, ...] = ()
    rewriting: tuple[RewriteSummary, ...] = ()
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
