"""Records of plans: segments, their kernels, and how far the search for them reaches. Saved results have them, too.

Nothing here searches, and nothing is imported that does: a process that only reads results needs no more.
"""

from dataclasses import dataclass, field
from math import inf

from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.graph import Graph
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.structure import AnyStructure


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """How far segments reach; `every_boundary`: boundaries are tried also where others are no worse."""

    max_ops: int = 16
    max_outputs: int = 3
    long_axis: int = 512  # a longer reduction is split over the loop or the grid
    tiny_axis: int = 32  # that long a product may be contracted again in its kernel: the rank of an adapter
    max_cones: int = 400  # segments that end in one op, smallest first
    longest_held: int = SEARCH.longest_row  # elements of rows whose variances and means are in one kernel
    large_product: tuple[int, int] = (128, 512)  # rows and columns, terms of a sum: above, the library may win
    every_boundary: bool = False
    library_products: bool = False  # products, and what the library computes with them, are kernels of the library alone


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    segments: SegmentLimits = field(default_factory=SegmentLimits)
    max_kernels: int | None = None  # of a plan
    deep: int = 48  # ops; programs of more are searched in windows
    window: int = 32  # ops of a window
    max_states: int = 20_000  # above it windows are searched, then shorter segments, then single ops
    max_edges: int = 60_000  # likewise
    patience: int = 24  # plans searched in a row without a cheaper one
    patience_of_few: int = 32  # segments searched in a row without a cheaper plan of few kernels
    max_searched: int = 320  # segments; a decoder layer searches 78
    close: float = 1.02  # a plan within this of the bound ends the search: the cost model is no finer
    most_us: float = inf  # of an equal program's plan: the search ends where none may be cheaper
    max_plans: int = 8
    fewer: bool = True  # plans of fewer kernels are searched, too: they may take less than is predicted
    until: Deadline = NEVER  # states found later have the smallest segment alone
    explore: int = 0  # programs of at most so many segments have all of them searched: where times will be measured
    explore_until: Deadline = NEVER  # the least likely ones last


@dataclass(frozen=True, slots=True)
class Segment:
    """Some ops of a program: the positions of their nodes, the values that they read, and those that are read outside."""

    nodes: frozenset[int]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


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
