"""The kernels of the segments of a program: each that is equal to another one as a program is searched once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mirage_eg.backends.cost.block_cost import slowdown
from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.backends.triton.storage import product_dtype
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_op
from mirage_eg.ir.op.elementwise import TERMS
from mirage_eg.ir.ops import Kind
from mirage_eg.search.partition.chosen_rows import copies_us
from mirage_eg.search.partition.plan_records import PlanPart, Segment, SegmentKernels
from mirage_eg.search.partition.segment_search import SegmentSearch, is_library_kernel, library_kernels
from mirage_eg.search.partition.segments import barriers, segment_program
from mirage_eg.search.trace import Traced


def least_us(program: Graph, segment: Segment, device: Device) -> float:
    """Microseconds: a launch, and each input read and each output written or its products computed; 0 without ops.

    Laws may leave fewer operations of products that are summed or added.
    """
    if not any(is_op(program.nodes[position]) for position in segment.nodes):
        return 0.0
    types = [program.types[value] for value in (*segment.inputs, *segment.outputs)]
    moved = sum(kind.nbytes for kind in types) / device.memory_bandwidth
    return device.launch_us + 1e6 * max(moved, _product_seconds(program, segment, device))


def _product_seconds(program: Graph, segment: Segment, device: Device) -> float:
    """The seconds of the products that only elementwise ops follow: of all, or of the largest if some are added."""
    followed = set[int]()  # values that reach an op that is not elementwise
    for position in sorted(segment.nodes, reverse=True):
        item, values = program.numbered()[position]
        if item.kind not in (Kind.ELEMENTWISE, Kind.REARRANGEMENT) or not followed.isdisjoint(values):
            followed.update(item.operands)
    seconds, made, are_added = [0.0], set[int](), False  # `made`: values that depend on products
    for position in sorted(segment.nodes):
        item, values = program.numbered()[position]
        if item.kind is Kind.MATMUL and followed.isdisjoint(values):
            rate = device.matrix_rate / slowdown(product_dtype(program, item, program.types[values[0]].dtype))
            seconds.append(flops_of_product(program, item, values[0]) / rate)
        if item.kind is Kind.MATMUL or not made.isdisjoint(item.operands):
            made.update(values)
        are_added |= item.op in TERMS and made.issuperset(item.operands)
    return max(seconds) if are_added else sum(seconds)


@dataclass
class KernelFinder:
    """Finds the kernels of the segments of one program; `run` searches programs, here or on workers, and may begin others."""

    program: Graph
    device: Device
    run: Callable[[Sequence[Graph], Iterator[Graph]], Sequence[SegmentSearch]]
    found: dict[Graph, SegmentSearch] = field(default_factory=dict)

    def lower_bound(self, segment: Segment) -> float:
        """The least that kernels of the segment can take, if it has any."""
        return least_us(self.program, segment, self.device)

    def traced(self) -> Iterator[Traced]:
        """Where candidates ended, segment by segment in the order in which they were searched."""
        for number, (program, found) in enumerate(self.found.items()):
            ops = " ".join(item.op for item in program.nodes if item.kind is not Kind.BOUNDARY)
            yield from (replace(entry, segment=f"{number}: {ops}") for entry in found.traced)

    def others(self, part: PlanPart) -> list[PlanPart]:
        """The µGraphs that were found for the segment of a part besides its own."""
        found = self.found.get(segment_program(self.program, part.segment))
        kernels = () if found is None else found.kernels
        return [PlanPart(part.segment, part.inputs, it) for it in kernels if it != part.kernels]

    def forget(self, blocks: frozenset[Graph], again: bool) -> None:
        """Leave out what has these block graphs; `again`: search its segments again when they are asked for."""
        for program, found in [*self.found.items()]:
            left = tuple(kernels for kernels in found.kernels if blocks.isdisjoint(kernels.graph.blocks))
            if left != found.kernels:
                if again:
                    del self.found[program]
                else:
                    self.found[program] = replace(found, kernels=left)

    def find(self, segments: Sequence[Segment], likely: Iterable[Segment] = ()) -> list[tuple[PlanPart, ...]]:
        """The cheapest µGraph of each number of kernels, for each segment; none where no block graph holds it.

        `likely`: segments that may follow.
        """
        programs = [segment_program(self.program, segment) for segment in segments]
        new = [program for program in dict.fromkeys(programs) if program not in self.found]
        next_ones = (segment_program(self.program, segment) for segment in likely)
        upcoming = (program for program in next_ones if program not in self.found)
        self.found.update(zip(new, self.run(new, upcoming), strict=True))
        return [self._parts(segment, self.found[program].kernels) for segment, program in zip(segments, programs, strict=True)]

    def library(self, segment: Segment) -> tuple[PlanPart, ...]:
        """The kernel of the library that computes a segment, if there is one."""
        program = segment_program(self.program, segment)
        return self._parts(segment, [library_kernels(self.device, program)]) if is_library_kernel(program) else ()

    def _parts(self, segment: Segment, found: Sequence[SegmentKernels]) -> tuple[PlanPart, ...]:
        best: dict[int, SegmentKernels] = {}
        for kernels in found:
            own = kernels if kernels.fused else self._with_copies(segment, kernels)
            best.setdefault(own.count, own)
        return tuple(PlanPart(segment, segment.inputs, kernels) for kernels in best.values())

    def _with_copies(self, segment: Segment, kernels: SegmentKernels) -> SegmentKernels:
        """Library kernels with the copies of chosen rows that they read."""
        read = [self._copies[value] for value in segment.inputs if value in self._copies]
        return replace(kernels, us=kernels.us + sum(read), count=kernels.count + len(read)) if read else kernels

    @cached_property
    def _copies(self) -> dict[int, float]:
        return copies_us(self.program, barriers(self.program), self.device)
