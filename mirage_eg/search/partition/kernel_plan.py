"""Plans: the segments of a program with the kernels that compute them, in the order in which they run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.op.library import ROW_READS
from mirage_eg.ir.op.moves import PLAIN_VIEWS
from mirage_eg.ir.passes import with_direct_reshapes, without_dead_code
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


def compose(program: Graph, parts: Sequence[PlanPart]) -> Graph:
    """The kernel graph of all parts, in the order in which they run; reshapes and gathers between them become views."""
    copy = GraphCopy(program)

    def read(value: int) -> int:
        if value not in copy.position:
            item = program.node_of[value]
            assert item.op in PLAIN_VIEWS or item.op in ROW_READS, "parts run in order"
            copy.position[value] = copy.append(replace(item, operands=tuple(map(read, item.operands))))
        return copy.position[value]

    for item, values in copy:
        if item.op == "input":
            copy.copy(item, values)
    for part in parts:
        results = copy.inlined(part.kernels.graph, list(map(read, part.inputs)))
        copy.position.update(zip(part.segment.outputs, results, strict=True))
    for item in program.outputs:
        copy.append(replace(item, operands=(read(item.operands[0]),)))
    return without_dead_code(with_direct_reshapes(copy.graph()))  # the reshape of a slice has no strides, the slice has
