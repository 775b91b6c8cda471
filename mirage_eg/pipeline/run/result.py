"""The results of a run: µGraphs with their records, and the report."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from mirage_eg.backends.cost.roofline_model import launched_kernels
from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.backends.triton.schedule import Schedules
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.passes import OptimizedMuGraph
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.search.partition.kernel_plan import KernelPlan, KnownSegment
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict

NOT_WRITTEN = "# not written"  # how the source of a µGraph begins that Triton has no words for


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """The compiler's figures for each kernel of a µGraph; for the whole, the largest counts and the first error."""

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


def _largest(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


NOT_COMPILED = CompileRecord("", (KernelCompile("all", "", False, None, None, None, "not compiled", 0.0),))
NOT_VERIFIED = Verdict(Equality.UNDECIDED, 0, 0, 0, 0, None, "not verified", 0.0, evidence=())
NOT_CHECKED = FloatCheck(False, inf, 0.0, None, compared=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One µGraph of the program; every stage of a run adds its results, and a missing result counts as bad.

    `plan` is the partition of the program whose segments the µGraph joins; the library form has none. `graph` is the µGraph as
    found, and from `optimized` on as lowered. `schedule` is the one that `source` was emitted with, None where it cannot be
    emitted.
    """

    graph: Graph
    predicted_us: float
    fused: bool
    proved_by_search: bool
    plan: KernelPlan | None = None
    found: Graph | None = None  # before the µGraph optimizer
    optimized: OptimizedMuGraph | None = None
    source: str = ""
    schedule: Schedules | None = None
    measured_us: float | None = None
    verdict: Verdict = NOT_VERIFIED
    float_check: FloatCheck = NOT_CHECKED
    compile: CompileRecord = NOT_COMPILED

    @property
    def as_found(self) -> Graph:
        """The µGraph before the µGraph optimizer."""
        return self.found or self.graph

    @property
    def proved(self) -> bool:
        """Whether the indexed laws prove it equal to the program."""
        return "proved" in self.verdict.evidence

    @property
    def kernels(self) -> int:
        """Kernels that it launches."""
        return len(launched_kernels(self.graph))

    @property
    def us(self) -> float:
        """Microseconds: measured where they were, else predicted."""
        return self.predicted_us if self.measured_us is None else self.measured_us


def finished(candidate: Candidate) -> Candidate:
    """The candidate as a result keeps it: without the records of the optimizer, which the report sums up.

    The structures of its plan are instantiated at other sizes.
    """
    return replace(candidate, found=None, optimized=None)


@dataclass(frozen=True, slots=True)
class Result:
    """The best µGraphs, best first, the report of the run, and every measurement of the tuning, if there was a GPU.

    `searched`: the program whose search found the structures, if that is the same at other sizes. `known`: the
    structures of segments, from which a program at other sizes takes other plans. `plans`: the best ones of that search, where
    no candidate has them.
    """

    candidates: tuple[Candidate, ...]
    report: RunReport
    measurements: tuple[Measurement, ...] = ()
    searched: Graph | None = None
    known: tuple[KnownSegment, ...] = ()
    plans: tuple[KernelPlan, ...] = ()
