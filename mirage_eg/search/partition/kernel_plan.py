"""Plans: the segments of a program with the kernels that compute them, in the order in which they run."""

from dataclasses import dataclass

from mirage_eg.ir.graph import Graph
from mirage_eg.search.partition.segments import Segment
from mirage_eg.search.structure import AnyStructure


@dataclass(frozen=True, slots=True)
class SegmentKernels:
    """A µGraph of one segment's program with its predicted microseconds; `fused` where the search found it, not the library.

    `structure`: the one that it is an instance of, if it is.
    """

    graph: Graph
    us: float
    count: int
    proved: bool
    fused: bool
    structure: AnyStructure | None = None


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """A segment that was searched, and structures that compute it."""

    segment: Segment
    structures: tuple[AnyStructure, ...]


@dataclass(frozen=True, slots=True)
class PlanPart:
    """One segment of a plan with its kernels; `inputs` are the values of the program that its µGraph reads, in order."""

    segment: Segment
    inputs: tuple[int, ...]
    kernels: SegmentKernels


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A path through the segments of a program: the parts of a µGraph in the order in which they run."""

    parts: tuple[PlanPart, ...]

    @property
    def us(self) -> float:
        """Predicted microseconds."""
        return sum(part.kernels.us for part in self.parts)

    @property
    def kernels(self) -> int:
        """Kernels of the parts; each concatenation counts, also several that one launch computes."""
        return sum(part.kernels.count for part in self.parts)
