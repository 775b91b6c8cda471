"""What a run gives: µGraphs with all that is known of them, and the report."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.backends.triton.schedule import Schedules
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.verify.verdict import FloatCheck, Verdict

NOT_WRITTEN = "# not written"  # how the source of a µGraph begins that Triton has no words for


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
    """One µGraph that passed verification; `proved` says that the indexed laws show it equal to the program.

    `schedule` is what `source` was written with, None where the µGraph cannot be written.
    """

    graph: Graph
    source: str
    schedule: Schedules | None
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
    measurements: tuple[Measurement, ...] = ()
