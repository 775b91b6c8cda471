"""The graph of plans: states are sets of values still needed, edges are segments, and each path to the end is a plan."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import inf
from operator import itemgetter

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import JOINS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.reached import operands_first
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.partition.plan_records import KernelPlan, PartitionLimits, PlanPart, Segment, SegmentLimits
from mirage_eg.search.partition.segments import Needed, Segmenter, op_count, segment_program
from mirage_eg.search.partition.windows import windows

# gives of each segment the best µGraph of each number of kernels; the second argument: segments of later calls, likeliest first
Find = Callable[[Sequence[Segment], Iterable[Segment]], list[tuple[PlanPart, ...]]]
LowerBound = Callable[[Segment], float]  # the least that a segment can cost, in microseconds
Library = Callable[[Segment], tuple[PlanPart, ...]]  # the kernels of the library for a segment, without a search
Edge = tuple[int, int]  # segment, state


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A segment of a plan, with its kernels, and the values that are needed before it."""

    segment: Segment
    parts: tuple[PlanPart, ...]
    needed: Needed


_TIGHTER: tuple[Callable[[SegmentLimits], SegmentLimits], ...] = (  # each for programs that the one before leaves too large
    lambda limits: replace(limits, long_axis=limits.long_axis // 2),
    lambda limits: replace(limits, long_axis=limits.long_axis // 4),
    lambda limits: replace(limits, long_axis=limits.long_axis // 4, max_outputs=1),
    lambda limits: replace(limits, long_axis=limits.long_axis // 4, max_outputs=1, max_ops=min(limits.max_ops, 10)),
)


def _left_out(limits: PartitionLimits, used: SegmentLimits, parts: int, cut: bool) -> Iterator[str]:
    """What is not searched under these limits of segments, in so many windows, in words."""
    wanted = limits.segments
    if parts > 1:
        yield f"kernels that reach from one of {parts} windows into the next"
    if used.long_axis < wanted.long_axis:
        yield f"kernels that reduce over two axes of more than {used.long_axis}"
    if used.max_outputs < wanted.max_outputs:
        yield f"kernels of more than {used.max_outputs} output"
    if used.max_ops < wanted.max_ops:
        yield f"kernels of more than {used.max_ops} ops"
    if cut:
        end = "the budget was spent" if limits.until.passed() else f"{counted(limits.max_states, 'state')}"
        yield f"kernels of several ops after {end}"


class PlanGraph:
    """The states and segments of a program, with bounds of their costs."""

    def __init__(
        self,
        program: Graph,
        lower_bound: LowerBound,
        limits: PartitionLimits,
        library: Library | None = None,
        given: Sequence[PlanStep] = (),
    ) -> None:
        """`library`: its kernels are those of segments with products; else these are searched. `given`: the steps of a plan."""
        self.segments: list[Segment] = []
        self.states: list[list[Edge]] = []
        self.searched: dict[int, tuple[PlanPart, ...]] = {}  # of the segments searched
        self.of_library: set[int] = set()  # the segments of a given plan that no search found: kernels of the library
        self.cut = False  # some states were not explored
        self.end = -1  # the position of the state that needs nothing; other states without edges are dead ends
        ops = op_count(program)
        own = windows(program, limits.window if ops > limits.deep else ops)
        whole = [(limits.segments, None)] if ops <= 2 * limits.deep else []
        tried = [*whole, *([(limits.segments, own)] if max(own) else [])]
        tried += [(tighter(limits.segments), own) for tighter in _TIGHTER]
        tried += [(tried[-1][0], windows(program, limits.segments.max_ops))]
        for number, (segments, parts) in enumerate(tried, 1):
            is_last = number == len(tried) or limits.until.passed()
            if self._expand(Segmenter(program, segments, parts), limits, is_last):
                self.left_out = tuple(_left_out(limits, segments, 1 + max(parts or (0,)), self.cut))
                self.cut |= number > 1
                break
        if library is not None:
            of_library = (
                (place, library(it)) for place, it in enumerate(self.segments) if not self._alone.isdisjoint(it.nodes)
            )
            self.searched |= {number: parts for number, parts in of_library if parts}
        self._add(given)
        self._program, self._alike = program, self._by_signature(program) if max(own) else {}
        self._equals: dict[int, list[int]] = {}
        self.order = [*operands_first([0], lambda place: [target for _, target in self.states[place]])]  # the end first
        self.lower_bounds = [lower_bound(segment) for segment in self.segments]  # a lower bound of each cost
        self.infeasible: set[int] = set()  # taken to have no kernels
        self._read = [sum(program.types[value].nbytes for value in segment.inputs) for segment in self.segments]
        self._costs: dict[tuple[float, bool], list[float]] = {}  # of all segments: `_costs_of`

    def _expand(self, segmenter: Segmenter, limits: PartitionLimits, anyway: bool) -> bool:
        """Make all states, unless there are too many, or too many plans from one to the next; `anyway`: as far as they go."""
        self.segments, self.states, self.cut = [], [], False
        count = 0
        numbers: dict[Segment, int] = {}
        self._alone, self._places = segmenter.alone, {segmenter.start: 0}
        frontier, places = [segmenter.start], self._places
        for place, needed in enumerate(frontier):
            edges: list[Edge] = []
            if not needed:
                self.end = place
            else:
                full = len(places) >= limits.max_states or limits.until.passed()
                if full and not anyway:
                    return False
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
            count += len(edges)
            if count > limits.max_edges and not anyway:
                return False
        return True

    def _add(self, steps: Sequence[PlanStep]) -> None:
        """Add a plan, from the outputs backwards, whose segments have been searched."""
        place = 0
        for step in steps:
            target = self._places.setdefault(step.needed, len(self.states))
            if target == len(self.states):
                self.states.append([])
            self.end = self.end if step.needed else target
            self.states[place].append((len(self.segments), target))
            self.searched[len(self.segments)] = step.parts
            if not any(part.kernels.fused for part in step.parts):
                self.of_library.add(len(self.segments))
            self.segments.append(step.segment)
            place = target

    def steps(self, per_kernel: float) -> list[PlanStep]:
        """The cheapest plan through segments that were searched, from the outputs backwards."""
        path, _ = self.cheapest(per_kernel, None, searched=True)
        needed = {place: it for it, place in self._places.items()}
        found, place = list[PlanStep](), 0
        for number in path:
            place = next(target for other, target in self.states[place] if other == number)
            found.append(PlanStep(self.segments[number], self.searched[number], needed[place]))
        return found

    def options(self, number: int) -> list[tuple[int, float]]:
        """The kernels and microseconds of each µGraph of a segment, or the least that it can take until it was searched."""
        if number in self.searched:
            return [(part.kernels.count, part.kernels.us) for part in self.searched[number]]
        return [] if number in self.infeasible else [(int(self.lower_bounds[number] > 0), self.lower_bounds[number])]

    def cheapest(self, per_kernel: float, most: int | None, searched: bool = False) -> tuple[tuple[int, ...], float]:
        """The segments of the cheapest plan of at most so many kernels, from the outputs backwards, and its cost; `searched`:
        through segments that were searched."""
        if most is None:
            return self._cheapest_of_any_number(self._costs_of(per_kernel, searched))
        options = [self._priced(number, per_kernel, searched) for number in range(len(self.segments))]
        found: list[dict[int, tuple[float, int, int, int]]] = [{} for _ in self.states]  # cost, segment, next place, kernels
        for place in self.order:
            here = found[place]
            if place == self.end:
                here[0] = 0.0, -1, -1, 0
            for number, target in self.states[place]:
                for kernels, added in options[number]:
                    for later, (cost, _, _, _) in found[target].items():
                        total = later + kernels
                        if total <= most and (total not in here or cost + added < here[total][0]):
                            here[total] = cost + added, number, target, later
        if not found[0]:
            return (), inf
        kernels = min(found[0], key=lambda count: found[0][count][0])
        path, place, least = [], 0, found[0][kernels][0]
        while place != self.end:
            _, number, place, kernels = found[place][kernels]
            path.append(number)
        return tuple(path), least

    def _priced(self, number: int, per_kernel: float, searched: bool) -> list[tuple[int, float]]:
        """The kernels and costs of each µGraph of a segment; none of one that should be `searched` and is not."""
        if searched and number not in self.searched:
            return []
        return [(kernels, us + per_kernel * kernels) for kernels, us in self.options(number)]

    def _least(self, number: int, per_kernel: float, searched: bool) -> float:
        return min((cost for _, cost in self._priced(number, per_kernel, searched)), default=inf)

    def _costs_of(self, per_kernel: float, searched: bool) -> list[float]:
        """The least costs of all segments, which `_changed` keeps: plans are sought hundreds of times among thousands."""
        key = per_kernel, searched
        if key not in self._costs:
            self._costs[key] = [self._least(number, *key) for number in range(len(self.segments))]
        return self._costs[key]

    def _changed(self, numbers: Iterable[int]) -> None:
        """Segments have other costs than before."""
        numbers = [*numbers]
        for key, costs in self._costs.items():
            for number in numbers:
                costs[number] = self._least(number, *key)

    def _cheapest_of_any_number(self, costs: Sequence[float]) -> tuple[tuple[int, ...], float]:
        """The segments of the cheapest plan and its cost, of segments that cost so much; this runs thousands of times."""
        least = [inf] * len(self.states)
        first: list[Edge] = [(-1, -1)] * len(self.states)
        for place in self.order:
            if place == self.end:
                least[place] = 0.0
                continue
            smallest = inf
            for edge in self.states[place]:
                cost = least[edge[1]] + costs[edge[0]]
                if cost < smallest:
                    smallest, first[place] = cost, edge
            least[place] = smallest
        path, place = list[int](), 0
        while least[0] < inf and place != self.end:
            number, place = first[place]
            path.append(number)
        return tuple(path), least[0]

    def best(self, per_kernel: float, most: int | None) -> tuple[float, float]:
        """What the cheapest plan through segments that were searched costs, and its microseconds; infinite without one."""
        path, cost = self.cheapest(per_kernel, most, searched=True)
        if not path:
            return inf, inf
        kernels = {0: 0.0}  # the microseconds of each number of kernels along the path
        for number in path:
            further: dict[int, float] = {}
            for more, us in self.options(number):
                for count, before in kernels.items():
                    further[count + more] = min(further.get(count + more, inf), before + us)
            kernels = further
        fitting = {count: us for count, us in kernels.items() if most is None or count <= most}
        return cost, min(fitting.items(), key=lambda entry: entry[1] + per_kernel * entry[0])[1]

    def _by_signature(self, program: Graph) -> dict[int, list[int]]:
        """The segments of the same ops on the same types, of each segment: those of other layers may have equal programs."""
        alike: dict[object, list[int]] = {}
        for number, segment in enumerate(self.segments):
            ops = tuple(program.nodes[position].op for position in sorted(segment.nodes))
            types = tuple(program.types[value] for value in (*segment.inputs, *segment.outputs))
            alike.setdefault((ops, types), []).append(number)
        return {number: numbers for numbers in alike.values() for number in numbers}

    def _equal(self, number: int) -> Sequence[int]:
        """The segments whose programs are that of one segment, which is among them."""
        if number not in self._equals:
            alike: dict[Graph, list[int]] = {}
            for other in (numbers := self._alike.get(number, [number])):
                own = segment_program(self._program, self.segments[other]) if len(numbers) > 1 else self._program
                alike.setdefault(own, []).append(other)
            self._equals |= {other: equal for equal in alike.values() for other in equal}
        return self._equals[number]

    def likely(self, waiting: Sequence[int], asked: int, per_kernel: float, most: int | None) -> Iterator[Segment]:
        """The segments that may follow the first `asked` ones in `waiting`: the others, those of the cheapest plan without
        them, then of the cheapest without these too, etc."""
        yield from (self.segments[number] for number in waiting[asked:])
        avoided = {*waiting}
        while more := self._waiting_without(avoided, per_kernel, most):
            avoided.update(more)
            yield from (self.segments[number] for number in more)

    def _waiting_without(self, avoided: set[int], per_kernel: float, most: int | None) -> list[int]:
        """The segments to search of the cheapest plan without those in `avoided`."""
        known, self.infeasible = self.infeasible, self.infeasible | avoided
        self._changed(avoided)
        path, _ = self.cheapest(per_kernel, most)
        self.infeasible = known
        self._changed(avoided)
        return [number for number in path if number not in self.searched]

    def evaluate(self, numbers: Sequence[int], find: Find, likely: Iterable[Segment] = ()) -> None:
        """Search segments, and the segments whose programs are equal."""
        numbers = sorted({other for number in numbers for other in self._equal(number)} - self.searched.keys())
        for number, parts in zip(numbers, find([self.segments[number] for number in numbers], likely), strict=True):
            self.searched[number] = parts
            wider = [*self._wider(number)]
            if not parts:
                outputs = self.segments[number].outputs
                self.infeasible.update(other for other in wider if self.segments[other].outputs == outputs)
            else:
                least = min(part.kernels.us for part in parts)
                for other in wider:
                    self.lower_bounds[other] = max(self.lower_bounds[other], least)
            self._changed([number, *wider])

    def waiting(self) -> list[int]:
        """The segments that were not searched and may have kernels, first that of which a plan may take least."""
        costs = self._costs_of(0.0, False)
        behind, before = [inf] * len(self.states), [inf] * len(self.states)  # from a state to the end, from the start to it
        behind[self.end] = before[0] = 0.0
        for place in self.order:
            for number, target in self.states[place]:
                behind[place] = min(behind[place], costs[number] + behind[target])
        least = [inf] * len(self.segments)
        for place in reversed(self.order):
            for number, target in self.states[place]:
                before[target] = min(before[target], before[place] + costs[number])
                least[number] = min(least[number], before[place] + costs[number] + behind[target])
        waiting = [number for number, us in enumerate(least) if us < inf and number not in self.searched]
        return sorted(waiting, key=least.__getitem__)

    def core(self, number: int) -> int:
        """The smallest segment with the products of this one that may take nearly as long, to be searched before it.

        It also bounds others around it. Where values are concatenated, less may have no kernel.
        """
        own, least = self.segments[number], SEARCH.core_share * self.lower_bounds[number]
        products = {at for at in own.nodes if self._program.nodes[at].kind is Kind.MATMUL}
        if not products or any(self._program.nodes[at].op in JOINS for at in own.nodes):
            return number
        cores = [
            other
            for other, segment in enumerate(self.segments)
            if products <= segment.nodes < own.nodes
            and segment.outputs == own.outputs
            and self._read[other] <= self._read[number]
            and self.lower_bounds[other] >= least
            and other not in self.searched
            and other not in self.infeasible
        ]
        return min(cores, key=lambda other: len(self.segments[other].nodes), default=number)

    def _wider(self, number: int) -> Iterator[int]:
        """The segments with the same ops and outputs and more, that read as much at least."""
        nodes, outputs = self.segments[number].nodes, frozenset(self.segments[number].outputs)
        for other, segment in enumerate(self.segments):
            if nodes < segment.nodes and self._read[number] <= self._read[other] and outputs.issubset(segment.outputs):
                yield other

    def front(self, max_kernels: int | None) -> list[KernelPlan]:
        """For each number of kernels the cheapest plan through the segments searched."""
        fronts: list[dict[int, tuple[float, tuple[PlanPart, ...]]]] = [{} for _ in self.states]
        for place in self.order:
            here = fronts[place]
            if place == self.end:
                here[0] = 0.0, ()
            for number, target in self.states[place]:
                for part in self.searched.get(number, ()):
                    for kernels, (us, parts) in fronts[target].items():
                        total = kernels + part.kernels.count
                        if (max_kernels is None or total <= max_kernels) and us + part.kernels.us < here.get(total, (inf,))[0]:
                            here[total] = us + part.kernels.us, (*parts, part)
        return [KernelPlan(parts) for _, (_, parts) in sorted(fronts[0].items())]

    def cheap(self, max_kernels: int | None, most: int) -> list[KernelPlan]:
        """The cheapest plans through the searched segments, with any number of kernels."""
        known: list[list[tuple[float, int, tuple[PlanPart, ...]]]] = [[] for _ in self.states]
        for place in self.order:
            here: list[tuple[float, int, tuple[PlanPart, ...]]] = [(0.0, 0, ())] if place == self.end else []
            for number, target in self.states[place]:
                here += [
                    (us + part.kernels.us, kernels + part.kernels.count, (*parts, part))
                    for part in self.searched.get(number, ())
                    for us, kernels, parts in known[target]
                    if max_kernels is None or kernels + part.kernels.count <= max_kernels
                ]
            known[place] = nsmallest(most, here, key=lambda plan: plan[:2])
        return [KernelPlan(parts) for _, _, parts in known[0]]

    def covering(self, max_kernels: int | None) -> list[KernelPlan]:
        """The cheapest plan through each segment searched that no cheaper one of these plans has, cheapest first.

        Plans that are predicted to take equally long may differ much in what they take: each segment is worth a measurement.
        """
        behind: list[tuple[float, tuple[PlanPart, ...]]] = [(inf, ()) for _ in self.states]  # from a state to the end
        before = list(behind)  # from the start to a state
        behind[self.end] = before[0] = 0.0, ()
        for place in self.order:
            for us, target, part in self._steps(place):
                behind[place] = min(behind[place], (us + behind[target][0], (*behind[target][1], part)), key=itemgetter(0))
        through: dict[Segment, tuple[float, tuple[PlanPart, ...]]] = {}
        for place in reversed(self.order):
            for us, target, part in self._steps(place):
                so_far = us + before[place][0]
                before[target] = min(before[target], (so_far, (part, *before[place][1])), key=itemgetter(0))
                whole = so_far + behind[target][0], (*behind[target][1], part, *before[place][1])
                through[part.segment] = min(through.get(part.segment, (inf, ())), whole, key=itemgetter(0))
        plans, seen = [], set[Segment]()
        for segment, (us, parts) in sorted(through.items(), key=lambda entry: entry[1][0]):
            plan = KernelPlan(parts)
            if segment not in seen and us < inf and (max_kernels is None or plan.kernels <= max_kernels):
                seen.update(part.segment for part in parts)
                plans.append(plan)
        return plans

    def _steps(self, place: int) -> Iterator[tuple[float, int, PlanPart]]:
        """The µGraphs of the segments searched that lead from a state, with their microseconds and the next state."""
        for number, target in self.states[place]:
            for part in self.searched.get(number, ()):
                yield part.kernels.us, target, part
