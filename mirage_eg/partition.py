"""The search for kernel boundaries: the cheapest way through the segments of a program, each searched when it matters.

States are sets of values still needed, edges are segments (`mirage_eg.segments`). An edge costs what the cost model says of the
best µGraph that the structure search finds for its segment; until that has been looked for, it costs the least that any kernel
could: the launch, and each input and output moved once. The cheapest way under these costs is found, its segments are searched,
and so on until every segment on it has been (Dellin and Srinivasa, 2016, LazySP). Then no other way through these segments is
cheaper under the cost model; where the number of searches ends it first, the gap to the last lower bound is reported.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

from mirage_eg.ir.graph import Graph
from mirage_eg.segments import Needed, Segment, SegmentLimits, Segmenter


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment with the µGraph that computes it; `inputs` are the program's values behind the inputs of `graph`."""

    segment: Segment
    inputs: tuple[int, ...]
    graph: Graph
    us: float
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


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """How much is searched."""

    segments: SegmentLimits = SegmentLimits()
    max_states: int = 20_000  # behind that many, ops are kernels of their own
    max_searches: int = 400  # segments searched for kernels
    patience: int = 12  # ways tried in a row that are not cheaper than the best


@dataclass(frozen=True, slots=True)
class Partition:
    """The ways found, cheapest first; none other through these segments costs less than `bound_us`."""

    ways: tuple[Way, ...]
    bound_us: float
    states: int
    segments: int
    searched: int
    complete: bool  # the cheapest way is within the bound, and no state was cut short


Find = Callable[[Segment], Piece | None]  # the best µGraph of a segment, if there is any
Floor = Callable[[Segment], float]  # the least that a segment can cost, in microseconds
Progress = Callable[[int, int, float], None]  # segments searched, of at most, microseconds of the best way


@dataclass(slots=True)
class _State:
    """What is needed, and the edges to what is needed then, as positions."""

    edges: list[tuple[int, int]]  # segment, state


def partition(
    program: Graph, find: Find, floor: Floor, limits: PartitionLimits | None = None, on_progress: Progress | None = None
) -> Partition:
    """The cheapest ways to make kernels of `program`, which is in primitive ops."""
    limits = limits or PartitionLimits()
    ways = _Ways(program, floor, limits)
    found: dict[tuple[int, ...], Way] = {}
    best, bound, waited = inf, 0.0, 0
    complete = False
    while waited < limits.patience:
        path = ways.cheapest()
        bound = max(bound, ways.cost_of(path))
        waiting = [number for number in path if number not in ways.pieces]
        if not waiting:
            complete = not ways.cut
            found[path] = ways.way(path)
            break
        if len(ways.pieces) + len(waiting) > limits.max_searches:
            break
        for number in waiting:
            ways.settle(number, find(ways.segments[number]))
        if all(ways.pieces[number] is not None for number in path):
            found[path] = ways.way(path)
        waited += 1
        if path in found and found[path].us < best:
            best, waited = found[path].us, 0
        if on_progress is not None:
            on_progress(len(ways.pieces), limits.max_searches, best)
    ways.forbid_unsearched()
    path = ways.cheapest()
    if ways.cost_of(path) < inf:
        found[path] = ways.way(path)
    ordered = sorted(found.values(), key=lambda way: way.us)
    return Partition(tuple(ordered), bound, len(ways.states), len(ways.segments), len(ways.pieces), complete)


class _Ways:
    """The states and segments of a program, with what is known of their costs."""

    def __init__(self, program: Graph, floor: Floor, limits: PartitionLimits) -> None:
        self.segments: list[Segment] = []
        self.states: list[_State] = []
        self.pieces: dict[int, Piece | None] = {}  # of the segments searched
        self.cut = False
        self._expand(Segmenter(program, limits.segments), limits.max_states)
        self.costs = [floor(segment) for segment in self.segments]

    def _expand(self, segmenter: Segmenter, max_states: int) -> None:
        numbers: dict[Segment, int] = {}
        places: dict[Needed, int] = {segmenter.start: 0}
        frontier = [segmenter.start]
        for needed in frontier:
            edges: list[tuple[int, int]] = []
            if needed:
                self.cut |= len(places) >= max_states
                for segment, left in segmenter.choices(needed, alone=len(places) >= max_states):
                    if segment not in numbers:
                        numbers[segment] = len(self.segments)
                        self.segments.append(segment)
                    if left not in places:
                        places[left] = len(frontier)
                        frontier.append(left)
                    edges.append((numbers[segment], places[left]))
            self.states.append(_State(edges))
        self.order = self._topological()

    def _topological(self) -> list[int]:
        """States behind all that they lead to."""
        order: list[int] = []
        seen = [False] * len(self.states)
        stack: list[tuple[int, Iterable[tuple[int, int]]]] = [(0, iter(self.states[0].edges))]
        seen[0] = True
        while stack:
            place, edges = stack[-1]
            for _, target in edges:
                if not seen[target]:
                    seen[target] = True
                    stack.append((target, iter(self.states[target].edges)))
                    break
            else:
                order.append(place)
                stack.pop()
        return order

    def cheapest(self) -> tuple[int, ...]:
        """The segments of the cheapest way, from the program's outputs backwards."""
        cost = [inf] * len(self.states)
        step: list[tuple[int, int] | None] = [None] * len(self.states)
        for place in self.order:
            if not self.states[place].edges:
                cost[place] = 0.0
            for number, target in self.states[place].edges:
                if (total := self.costs[number] + cost[target]) < cost[place]:
                    cost[place], step[place] = total, (number, target)
        path = []
        place = 0
        while (taken := step[place]) is not None:
            path.append(taken[0])
            place = taken[1]
        return tuple(path)

    def cost_of(self, path: tuple[int, ...]) -> float:
        return sum(self.costs[number] for number in path) if path else inf

    def settle(self, number: int, piece: Piece | None) -> None:
        """What the search for a segment's kernels has brought."""
        self.pieces[number] = piece
        self.costs[number] = inf if piece is None else piece.us

    def forbid_unsearched(self) -> None:
        for number in range(len(self.segments)):
            if number not in self.pieces:
                self.costs[number] = inf

    def way(self, path: tuple[int, ...]) -> Way:
        pieces = [self.pieces[number] for number in reversed(path)]
        return Way(tuple(piece for piece in pieces if piece is not None))
