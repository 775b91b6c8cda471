"""The report of a run: one frozen record, built once at its end, and its form in JSON (report.json)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.user_cost import UserCost
from mirage_eg.pipeline.run.heuristics import Heuristics
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


def plain(value: Any) -> Any:
    """The value in JSON's types; NaN and infinities, which JSON lacks, become null; the field `pass_` has the key `pass`.
    A user's cost is its name.

    Raises:
        TypeError: JSON has no form for the value.
    """
    match value:
        case float():
            return value if isfinite(value) else None
        case Enum():
            return value.value
        case None | bool() | int():
            return value
        case str() | Path() | Fraction():
            return str(value)
        case Mapping():
            return {str(key): plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [plain(entry) for entry in value]
        case UserCost():
            return value.name
        case _ if is_dataclass(value):
            return {field.name.removesuffix("_"): plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            raise TypeError(f"got {value!r}, which JSON cannot hold")
