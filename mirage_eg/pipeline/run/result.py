"""The results of a run: µGraphs with their records, and the report."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.backends.triton.schedule import Schedules
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.search.partition.plan_records import KernelPlan, KnownSegment
from mirage_eg.verify.verdict import FloatCheck, Verdict

NOT_WRITTEN = "# not written"  # how the source of a µGraph begins that Triton has no words for


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller of a run shows besides the kernels.

    `diagnosis`: why no kernel is fused, and a verdict on each kernel. `proofs`: of all candidates; else only where tests leave
    open whether one is equal.
    `others`: also candidates that are slower than the first; else these are not verified. `winning`: kernels that are predicted
    not to lose against the program as Inductor compiles it; else nothing is verified or compiled.
    """

    diagnosis: bool = True
    proofs: bool = True
    others: bool = True
    winning: bool = False


EVERYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """The compiler's figures for each kernel of a µGraph; for the whole, the largest counts and the first error.

    `tried`: without a GPU a µGraph that cannot be the first of its run is written and not compiled. `spill_us`: what kernels
    spill takes so many microseconds more than was predicted.
    """

    target: str
    kernels: tuple[KernelCompile, ...]
    tried: bool = True
    spill_us: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether no kernel fails."""
        return all(kernel.ok for kernel in self.kernels)

    @property
    def compiles(self) -> bool | None:
        """Whether all kernels compile; None where that was not tried."""
        return self.ok if self.tried else None

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


def _largest(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One µGraph of the program as it was lowered, with its source, its verification and the compiler's record.

    `plan` is the partition of the program whose segments the µGraph joins; the library form has none. `schedule` is the one
    that `source` was emitted with, None where it cannot be emitted.
    """

    graph: Graph
    predicted_us: float
    fused: bool
    source: str
    schedule: Schedules | None
    compile: CompileRecord
    verdict: Verdict
    float_check: FloatCheck
    plan: KernelPlan | None = None
    measured_us: float | None = None

    @property
    def proved(self) -> bool:
        """Whether the indexed laws prove it equal to the program."""
        return "proved" in self.verdict.evidence

    @property
    def kernels(self) -> int:
        """Kernels that it launches."""
        from mirage_eg.backends.launches.launch_graph import launches_of

        return len(launches_of(self.graph).kernels)

    @property
    def us(self) -> float:
        """Microseconds: measured where they were, else predicted, with what the compiled kernels spill."""
        return self.predicted_us + self.compile.spill_us if self.measured_us is None else self.measured_us


@dataclass(frozen=True, slots=True)
class Behind:
    """Predicted microseconds of the best µGraph, which are not less than those of the program as Inductor compiles it."""

    best_us: float
    compiled_us: float


@dataclass(frozen=True, slots=True)
class Result:
    """The best µGraphs, best first, the report of the run, and every measurement of the tuning, if there was a GPU.

    `searched`: the program whose search found the structures, if that is the same at other sizes. `known`: the
    structures of segments, from which a program at other sizes takes other plans. `plans`: the best ones of that search, where
    no candidate has them. `cut`: the budget ended the run before its work was done. `behind`: where only
    winning kernels were wanted, why the search ended before compilation.
    """

    candidates: tuple[Candidate, ...]
    report: RunReport
    measurements: tuple[Measurement, ...] = ()
    searched: Graph | None = None
    known: tuple[KnownSegment, ...] = ()
    plans: tuple[KernelPlan, ...] = ()
    cut: bool = False
    behind: Behind | None = None

    @property
    def gated_us(self) -> float:
        """The predicted time of the µGraph that is held against Inductor's code; infinite where none is."""
        return inf if self.behind is not None or not self.candidates else self.candidates[0].us
