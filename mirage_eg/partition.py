"""The search for kernel boundaries: the cheapest way through the segments of a program, each searched when it matters.

States are sets of values still needed, edges are segments (`mirage_eg.segments`). An edge costs what the cost model says of the
best µGraph that the structure search finds for its segment; until that has been looked for, it costs the least that any kernel
could: the launch, and each input and output moved once. The cheapest way under these costs is found, its segments are searched,
and so on until every segment on it has been (Dellin and Srinivasa, 2016, LazySP). Then no other way through these segments is
cheaper under the cost model; where patience ends first, the gap to the last lower bound is known. One thing is taken for
granted: where no block graph holds a segment, none holds one with the same ops and more.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf

from mirage_eg.ir.graph import Graph
from mirage_eg.segments import Needed, Segment, Segmenter, SegmentLimits


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment with the µGraph that computes it; `inputs` are the program's values behind the inputs of `graph`."""

    segment: Segment
    inputs: tuple[int, ...]
    graph: Graph
    us: float
    kernels: int
    proved: bool
    fused: bool


@dataclass(frozen=True, slots=True)
class Way:
    """A µGraph of the whole program as its pieces in the order in which they run."""

    pieces: tuple[Piece, ...]

    @property
    def us(self) -> float:
        """Predicted microseconds."""
        return sum(piece.us for piece in self.pieces)

    @property
    def kernels(self) -> int:
        """Kernels that are launched."""
        return sum(piece.kernels for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """How much is searched."""

    segments: SegmentLimits = field(default_factory=SegmentLimits)
    max_kernels: int | None = None  # of a way
    max_states: int = 20_000  # behind that many, ops are kernels of their own
    patience: int = 8  # ways tried in a row that are not cheaper than the best
    close: float = 1.02  # a way within this of the bound ends the search: the cost model is no finer
    max_ways: int = 8
    explore: int = 0  # programs of at most so many segments have all of them searched: where times will be measured


@dataclass(frozen=True, slots=True)
class Partition:
    """The cheapest ways, cheapest first, and those that fewer kernels make dearer; none through these segments is below
    `bound_us`."""

    ways: tuple[Way, ...]
    bound_us: float
    states: int
    segments: int
    searched: int
    complete: bool  # no way through these segments is cheaper than the first
    pieces: tuple[tuple[Segment, Piece | None], ...]  # of the segments searched


Find = Callable[[Sequence[Segment]], list[Piece | None]]  # the best µGraph of each segment, if there is any
Floor = Callable[[Segment], float]  # the least that a segment can cost, in microseconds
Progress = Callable[[int, float], bool]  # segments searched and microseconds of the best way; whether to go on


def partition(
    program: Graph, find: Find, floor: Floor, limits: PartitionLimits | None = None, on_progress: Progress | None = None
) -> Partition:
    """The cheapest ways to make kernels of `program`, which is in primitive ops."""
    limits = limits or PartitionLimits()
    ways = _Ways(program, floor, limits)
    best, bound, waited = inf, 0.0, 0
    complete, going = False, True
    while going and waited < limits.patience:
        path = ways.cheapest()
        bound = max(bound, ways.cost_of(path) - _TIE_US * len(program.nodes))
        waiting = [number for number in path if number not in ways.pieces]
        if not waiting:
            complete = not ways.cut
            break
        for number, piece in zip(waiting, find([ways.segments[number] for number in waiting]), strict=True):
            ways.settle(number, piece)
        waited += best < inf
        if (cost := ways.cost_of(path)) < best:
            best, waited = cost, 0
        if best <= limits.close * bound:
            break
        going = on_progress is None or on_progress(len(ways.pieces), best)
    if len(ways.segments) <= limits.explore:
        rest = [number for number in range(len(ways.segments)) if number not in ways.pieces]
        for number, piece in zip(rest, find([ways.segments[number] for number in rest]), strict=True):
            ways.settle(number, piece)
    front = ways.front(limits.max_kernels)
    least = [way for place, way in enumerate(front) if all(way.us < other.us for other in front[:place])]
    more = front + ways.cheap(limits.max_kernels, limits.max_ways if limits.explore else 0)
    found = dict.fromkeys([*least, *sorted(more, key=_order)][: max(len(least), limits.max_ways)])
    return Partition(
        tuple(sorted(found, key=_order)),
        bound,
        len(ways.states),
        len(ways.segments),
        len(ways.pieces),
        complete,
        tuple((ways.segments[number], piece) for number, piece in sorted(ways.pieces.items())),
    )


def _order(way: Way) -> tuple[float, int]:
    return way.us, way.kernels


_TIE_US = 1e-3  # a kernel more, where all else is equal
Edge = tuple[int, int]  # segment, state


class _Ways:
    """The states and segments of a program, with what is known of their costs."""

    def __init__(self, program: Graph, floor: Floor, limits: PartitionLimits) -> None:
        self.segments: list[Segment] = []
        self.states: list[list[Edge]] = []
        self.pieces: dict[int, Piece | None] = {}  # of the segments searched
        self.cut = False  # some states were not explored
        self._expand(Segmenter(program, limits.segments), limits.max_states)
        self.order = self._topological()
        self.costs = [floor(segment) for segment in self.segments]

    def _expand(self, segmenter: Segmenter, max_states: int) -> None:
        numbers: dict[Segment, int] = {}
        places: dict[Needed, int] = {segmenter.start: 0}
        frontier = [segmenter.start]
        for needed in frontier:
            edges: list[Edge] = []
            if needed:
                full = len(places) >= max_states
                self.cut |= full
                for segment, left in segmenter.choices(needed, alone=full):
                    if segment not in numbers:
                        numbers[segment] = len(self.segments)
                        self.segments.append(segment)
                    if left not in places:
                        places[left] = len(frontier)
                        frontier.append(left)
                    edges.append((numbers[segment], places[left]))
            self.states.append(edges)

    def _topological(self) -> list[int]:
        """States behind all that they lead to."""
        order: list[int] = []
        seen = [False] * len(self.states)
        stack: list[tuple[int, Iterable[Edge]]] = [(0, iter(self.states[0]))]
        seen[0] = True
        while stack:
            place, edges = stack[-1]
            for _, target in edges:
                if not seen[target]:
                    seen[target] = True
                    stack.append((target, iter(self.states[target])))
                    break
            else:
                order.append(place)
                stack.pop()
        return order

    def cheapest(self) -> tuple[int, ...]:
        """The segments of the cheapest way, from the program's outputs backwards."""
        cost = [inf] * len(self.states)
        step: list[Edge | None] = [None] * len(self.states)
        for place in self.order:
            if not self.states[place]:
                cost[place] = 0.0
            for number, target in self.states[place]:
                if (total := self.costs[number] + cost[target]) < cost[place]:
                    cost[place], step[place] = total, (number, target)
        path = []
        place = 0
        while (taken := step[place]) is not None:
            path.append(taken[0])
            place = taken[1]
        return tuple(path)

    def cost_of(self, path: tuple[int, ...]) -> float:
        """The cost of a way, infinite where there is none."""
        return sum(self.costs[number] for number in path) if path else inf

    def settle(self, number: int, piece: Piece | None) -> None:
        """What the search for a segment's kernels has brought."""
        self.pieces[number] = piece
        self.costs[number] = inf if piece is None else piece.us + _TIE_US * piece.kernels
        if piece is None:  # taken to be true of all segments that have these ops and more
            for other, segment in enumerate(self.segments):
                if other not in self.pieces and self.segments[number].nodes < segment.nodes:
                    self.costs[other] = inf

    def front(self, max_kernels: int | None) -> list[Way]:
        """For each number of kernels the cheapest way through the segments searched."""
        fronts: list[dict[int, tuple[float, tuple[Piece, ...]]]] = [{} for _ in self.states]
        for place in self.order:
            here = fronts[place]
            if not self.states[place]:
                here[0] = 0.0, ()
            for number, target in self.states[place]:
                if (piece := self.pieces.get(number)) is not None:
                    for kernels, (us, pieces) in fronts[target].items():
                        total = kernels + piece.kernels
                        if (max_kernels is None or total <= max_kernels) and us + piece.us < here.get(total, (inf,))[0]:
                            here[total] = us + piece.us, (*pieces, piece)
        return [Way(pieces) for _, (_, pieces) in sorted(fronts[0].items())]

    def cheap(self, max_kernels: int | None, most: int) -> list[Way]:
        """The cheapest ways through the segments searched, whatever their number of kernels."""
        known: list[list[tuple[float, int, tuple[Piece, ...]]]] = [[] for _ in self.states]
        for place in self.order:
            here: list[tuple[float, int, tuple[Piece, ...]]] = [] if self.states[place] else [(0.0, 0, ())]
            for number, target in self.states[place]:
                if (piece := self.pieces.get(number)) is not None:
                    here += [
                        (us + piece.us, kernels + piece.kernels, (*pieces, piece))
                        for us, kernels, pieces in known[target]
                        if max_kernels is None or kernels + piece.kernels <= max_kernels
                    ]
            known[place] = nsmallest(most, here, key=lambda way: way[:2])
        return [Way(pieces) for _, _, pieces in known[0]]
