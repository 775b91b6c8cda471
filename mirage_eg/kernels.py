"""The best µGraph of one segment of a program: a library kernel where it is a single op, or what the structure search finds.

Segments that are equal as programs are searched once. Structures of the abstract domain are checked in random fields on a small
instance before they count; those of the indexed domain are proved by their root class.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirage_eg.cost import predict_us
from mirage_eg.devices import Device
from mirage_eg.expression import Split
from mirage_eg.instantiate import Filters, TileLimits, instances, small_instance
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph, Node, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.partition import Piece
from mirage_eg.rulebook import Rulebook
from mirage_eg.search import SearchLimits, search
from mirage_eg.segments import Segment, segment_program, uses_apart
from mirage_eg.space import Chain, Structure
from mirage_eg.verify import Reference


@dataclass(frozen=True, slots=True)
class Kernels:
    """A µGraph of a segment's program with its predicted time."""

    graph: Graph
    us: float
    proved: bool
    fused: bool


@dataclass(slots=True)
class KernelFinder:
    """Finds the kernels of segments under the limits of a run, and remembers what it found."""

    program: Graph
    rulebook: Rulebook
    device: Device
    limits: SearchLimits
    filters: Filters = field(default_factory=Filters)
    plans: int = 6  # structures of each split that get extents, smallest first
    found: dict[Graph, list[Kernels]] = field(default_factory=dict)
    visited: int = 0
    structures: int = 0

    def floor(self, segment: Segment) -> float:
        """The least that a kernel of the segment can take: a launch, and each input read and output written once."""
        types = [self.program.types[value] for value in (*segment.inputs, *segment.outputs)]
        launch = self.device.launch_us if _works(self.program, segment) else 0.0
        return launch + 1e6 * sum(kind.nbytes for kind in types) / self.device.memory_bandwidth

    def find(self, segment: Segment) -> Piece | None:
        """The cheapest µGraph of a segment, if there is any."""
        for apart in (False, True):  # X Xᵀ has one axis in two dims, unless each use of X has its own name
            inputs = uses_apart(self.program, segment) if apart else segment.inputs
            program = segment_program(self.program, segment, apart)
            if program not in self.found:
                self.found[program] = sorted(self._kernels(program), key=lambda kernels: kernels.us)
            if self.found[program]:
                best = self.found[program][0]
                return Piece(segment, inputs, best.graph, best.us, best.proved, best.fused)
        return None

    def _kernels(self, program: Graph) -> Iterator[Kernels]:
        if sum(_is_work(item) for item in program.nodes) <= 1:
            yield Kernels(program, predict_us(program, self.device), proved=True, fused=False)
        try:
            axes = infer_axes(program)
        except UnsupportedError:
            return
        found = search(program, axes, self.rulebook, self.limits)
        self.visited += sum(record.visited for record in found.records)
        self.structures += len(found.structures) + len(found.chains)
        tiles = TileLimits(shared_memory=self.device.shared_memory, multiprocessors=self.device.multiprocessors)
        for plans in (found.structures, found.chains):
            yield from self._instances(plans, program, axes, tiles)

    def _instances(
        self, plans: Sequence[Structure] | Sequence[Chain], program: Graph, axes: Axes, tiles: TileLimits
    ) -> Iterator[Kernels]:
        """The best µGraph of each of the first plans that have any."""
        tried: Counter[Split] = Counter()
        for plan in plans:
            tried[plan.split] += 1
            if tried[plan.split] > self.plans:
                continue
            best: Kernels | None = None
            for graph in instances(plan, program, axes, tiles, self.filters):
                us = predict_us(graph, self.device)
                if best is None or us < best.us:
                    best = Kernels(graph, us, plan.proved, fused=True)
            if best is not None and (plan.proved or _equal_when_small(plan, program, axes)):
                yield best


def _equal_when_small(plan: Structure | Chain, program: Graph, axes: Axes) -> bool:
    small, candidate = small_instance(plan, program, axes)
    return Reference(small).check(candidate).equal


def _is_work(item: Node) -> bool:
    return OPS[item.op].kind is not Kind.BOUNDARY and item.op != "reshape"


def _works(program: Graph, segment: Segment) -> bool:
    return any(_is_work(item) for position, item in enumerate(program.nodes) if position in segment.nodes)


def compose(program: Graph, pieces: Sequence[Piece]) -> Graph:
    """One kernel graph of all pieces, in the order in which they run; what reshapes show of their results is seen through."""
    nodes: list[Node] = []
    place: dict[int, int] = {}  # values of the program that are there
    makers = [(item, values) for item, values in program.numbered() for _ in values]
    count = 0

    def append(item: Node, made: int) -> range:
        nonlocal count
        nodes.append(item)
        count += made
        return range(count - made, count)

    def read(value: int) -> int:
        if value not in place:
            item = makers[value][0]
            assert item.op == "reshape", "pieces run in order"
            place[value] = append(Node(item.op, (read(item.operands[0]),), item.attributes), 1)[0]
        return place[value]

    for item, values in program.numbered():
        if item.op == "input":
            place[values[0]] = append(item, 1)[0]
    for piece in pieces:
        inputs = iter(piece.inputs)
        inside: dict[int, int] = {}
        outputs = iter(piece.segment.outputs)
        for item, values in piece.graph.numbered():
            if item.op == "input":
                inside[values[0]] = read(next(inputs))
            elif item.op == "output":
                place[next(outputs)] = inside[item.operands[0]]
            else:
                moved = Node(item.op, tuple(inside[i] for i in item.operands), item.attributes)
                inside.update(zip(values, append(moved, len(values)), strict=True))
    for item in program.outputs:
        nodes.append(node("output", read(item.operands[0]), name=item.get("name")))
    return Graph(tuple(nodes))
