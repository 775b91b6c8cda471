"""In which order the kernels of a µGraph run, and the ops of a block: so that the fewest bytes live at once.

One problem for both: tasks with dependences make values that live until their last reader has run; the largest live set is to
be as small as possible. Solved exactly by a best-first search over sets of tasks that have run: the live set depends on the set
alone, not on its order. A task that frees at least what it makes, within the bytes needed anyway, runs at once; nothing is lost
by that (run early, it only lowers what lives in between). If too many sets come up, the order given stays, with the bound that
is proved by then.

In a block graph, prologue, loop and epilogue are ordered one by one: what a later phase reads lives to the end of the phase,
accumulators live through the loop. Bytes are those of padded float32 tiles in registers; loads that only matmuls read go
through shared memory and count nothing. At the kernel level, bytes are those of intermediates in device memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from math import prod

from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.ir.graph import Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind

MOST_SETS = 20_000
_VIEWS = ("reshape", "transpose", "broadcast", "split")


@dataclass(frozen=True, slots=True)
class Task:
    """What must run before it, the values that it reads, and those that it makes with their sizes."""

    after: frozenset[int]
    reads: frozenset[int]
    makes: tuple[tuple[int, int], ...]  # value, bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """Tasks; values that live beforehand with their sizes, and values that live on behind the last task."""

    tasks: tuple[Task, ...]
    there: tuple[tuple[int, int], ...] = ()
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Order:
    """Tasks in order, the most bytes that live at once, and the least that any order can have as far as is proved."""

    tasks: tuple[int, ...]
    peak: int
    bound: int

    @property
    def optimal(self) -> bool:
        """Whether no order is better, by proof."""
        return self.peak == self.bound


def live_bytes_of(problem: Problem, tasks: Sequence[int]) -> int:
    """The most bytes that live at once; while a task runs, what it reads and what it makes both live."""
    live = dict(_read_or_kept(problem))
    peak = sum(live.values())
    last = {value: step for step, i in enumerate(tasks) for value in problem.tasks[i].reads}
    for step, i in enumerate(tasks):
        live |= dict(problem.tasks[i].makes)
        peak = max(peak, sum(live.values()))
        live = {value: size for value, size in live.items() if value in problem.kept or last.get(value, -1) > step}
    return peak


def _read_or_kept(problem: Problem) -> tuple[tuple[int, int], ...]:
    """What is there, without what nobody needs."""
    needed = problem.kept.union(*(task.reads for task in problem.tasks))
    return tuple((value, size) for value, size in problem.there if value in needed)


@lru_cache(maxsize=4096)
def best_order(problem: Problem, most: int = MOST_SETS) -> Order:
    """An order of the smallest peak; of equal ones, one that stays close to the order given."""
    return _Search(replace(problem, there=_read_or_kept(problem)), most).run()


class _Search:
    """Best-first over sets of tasks as bit masks; plain ints and tuples, for it is an inner loop."""

    def __init__(self, problem: Problem, most: int) -> None:
        self.problem, self.most = problem, most
        self.count = len(problem.tasks)
        self.sizes = dict(problem.there) | {value: size for task in problem.tasks for value, size in task.makes}
        self.before = [sum(1 << i for i in task.after) for task in problem.tasks]
        self.made = [sum(size for _, size in task.makes) for task in problem.tasks]
        self.readers = {
            value: sum(1 << i for i, task in enumerate(problem.tasks) if value in task.reads) for value in self.sizes
        }

    def freed(self, mask: int, i: int) -> int:
        """Bytes that end when task i runs after those of `mask`: of what it reads, and of its own that nobody reads."""
        task, then = self.problem.tasks[i], mask | 1 << i
        ends = [*task.reads, *(value for value, _ in task.makes)]
        return sum(
            self.sizes[value]
            for value in ends
            if value in self.sizes and value not in self.problem.kept and not self.readers[value] & ~then
        )

    def run(self) -> Order:
        start = sum(size for _, size in self.problem.there)
        while_it_runs = [
            self.made[i] + sum(self.sizes.get(value, 0) for value in task.reads) for i, task in enumerate(self.problem.tasks)
        ]
        floor = max([start, *while_it_runs])
        given = tuple(range(self.count))
        best = live_bytes_of(self.problem, given)
        if best == floor or not self.count:
            return Order(given, best, best)
        full = (1 << self.count) - 1
        heap: list[tuple[int, int, tuple[int, ...], int, int]] = [(floor, 0, (), 0, start)]
        seen: set[int] = set()
        while heap:
            peak, _, done, mask, live = heappop(heap)
            if peak >= best:
                break
            if mask in seen:
                continue
            seen.add(mask)
            if len(seen) > self.most:
                return Order(given, best, peak)
            done, mask, live = self._run_free(done, mask, live, peak)
            if mask == full:
                return Order(done, peak, peak)
            for i in range(self.count):
                if not mask >> i & 1 and not self.before[i] & ~mask:
                    reached = max(peak, live + self.made[i])
                    then = mask | 1 << i
                    if then not in seen and reached < best:
                        entry = (reached, -len(done), (*done, i), then, live + self.made[i] - self.freed(mask, i))
                        heappush(heap, entry)
        return Order(given, best, best)

    def _run_free(self, done: tuple[int, ...], mask: int, live: int, peak: int) -> tuple[tuple[int, ...], int, int]:
        """Run every task that frees at least what it makes without a higher peak."""
        again = True
        while again:
            again = False
            for i in range(self.count):
                if mask >> i & 1 or self.before[i] & ~mask or live + self.made[i] > peak:
                    continue
                freed = self.freed(mask, i)
                if freed >= self.made[i]:
                    done, mask, live, again = (*done, i), mask | 1 << i, live + self.made[i] - freed, True
        return done, mask, live


# --- Kernels -----------------------------------------------------------------------------------------------------------------


def kernels_problem(graph: Graph) -> tuple[Problem, list[int]]:
    """The order of the nodes of a kernel graph but inputs and outputs, as a problem; and the positions of these nodes.

    A view lives in the memory of what it shows. What the caller gets is the caller's.
    """
    shown: dict[int, int] = {}
    for item, values in graph.numbered():
        for value in values:
            base = item.operands[0] if item.op in _VIEWS else None
            shown[value] = value if base is None else shown[base]
    given = {shown[i] for item in graph.outputs for i in item.operands}
    tasks, positions = list[Task](), list[int]()
    maker: dict[int, int] = {}
    for position, (item, values) in enumerate(graph.numbered()):
        if OPS[item.op].kind is Kind.BOUNDARY:
            continue
        makes = tuple((value, 0 if value in given or shown[value] != value else graph.types[value].nbytes) for value in values)
        after = frozenset(maker[i] for i in item.operands if i in maker)
        reads = frozenset(shown[i] for i in item.operands if shown[i] in maker)
        maker |= dict.fromkeys(values, len(tasks))
        tasks.append(Task(after, reads, makes))
        positions.append(position)
    return Problem(tuple(tasks)), positions


def order_kernels(graph: Graph) -> tuple[Graph, Order]:
    """The kernel graph with its nodes in an order that keeps the least device memory live."""
    problem, positions = kernels_problem(graph)
    order = best_order(problem)
    inputs = [i for i, item in enumerate(graph.nodes) if item.op == "input"]
    outputs = [i for i, item in enumerate(graph.nodes) if item.op == "output"]
    return reordered(graph, [*inputs, *(positions[i] for i in order.tasks), *outputs]), order


def reordered(graph: Graph, positions: Sequence[int]) -> Graph:
    """The graph with its nodes in this order, which respects their dependences; inputs and outputs count as they then stand."""
    numbered = list(graph.numbered())
    place: dict[int, int] = {}
    nodes: list[Node] = []
    for position in positions:
        item, values = numbered[position]
        nodes.append(Node(item.op, tuple(place[i] for i in item.operands), item.attributes))
        for value in values:
            place[value] = len(place)
    return replace(graph, nodes=tuple(nodes))


# --- Ops of a block ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """Positions of the nodes of a block graph in order; the peak of bytes, as given and as ordered, and the proved bound."""

    positions: tuple[int, ...]
    before: int
    peak: int
    bound: int


def order_block(block: Graph) -> BlockOrder:
    """An order of the ops of a block graph that keeps the fewest bytes live; phases one after the other, outputs in order."""
    numbered = list(block.numbered())
    problems = _phase_problems(block)
    positions: list[int] = []
    before = peak = bound = 0
    for problem, places in problems:
        order = best_order(problem)
        positions += [places[i] for i in order.tasks]
        before = max(before, live_bytes_of(problem, range(len(places))))
        peak, bound = max(peak, order.peak), max(bound, order.bound)
    assert len(positions) == len(numbered)
    return BlockOrder(tuple(positions), before, peak, bound)


def _phase_problems(block: Graph) -> list[tuple[Problem, list[int]]]:
    """A problem for each phase, with the positions of its nodes."""
    sizes = tile_bytes(block)
    phase_of: list[Phase] = []  # of every node: where it is written; an output is written behind all values
    for item, values in block.numbered():
        phase_of.append(_written_in(block, item, values))
    users: dict[int, list[int]] = {}
    for position, item in enumerate(block.nodes):
        for operand in item.operands:
            users.setdefault(operand, []).append(position)
    maker = {value: position for position, (_, values) in enumerate(block.numbered()) for value in values}
    sums = [value for value, position in maker.items() if OPS[block.nodes[position].op].kind is Kind.ACCUMULATOR]
    made = []
    for phase in Phase:
        places = [position for position, own in enumerate(phase_of) if own is phase]
        number = {position: i for i, position in enumerate(places)}
        there = {
            value: sizes[value]
            for value, position in maker.items()
            if phase_of[position] < phase and any(phase_of[user] >= phase for user in users.get(value, ()))
        }
        if phase is Phase.LOOP:
            there |= {value: sizes[value] for value in sums}
        kept = {value for value in maker if any(phase_of[user] > phase for user in users.get(value, ()))} | set(sums)
        if phase is Phase.EPILOGUE:
            kept = set()
            there |= {value: sizes[value] for value in sums}
        tasks = []
        last_output = None
        for position in places:
            item = block.nodes[position]
            after = {number[maker[i]] for i in item.operands if maker[i] in number}
            if item.op == "output":
                after |= set() if last_output is None else {last_output}
                last_output = number[position]
            makes = tuple((value, sizes[value]) for value in maker if maker[value] == position and value not in there)
            tasks.append(Task(frozenset(after), frozenset(item.operands), makes))
        made.append((Problem(tuple(tasks), tuple(there.items()), frozenset(kept)), places))
    return made


def _written_in(block: Graph, item: Node, values: range) -> Phase:
    if item.op == "output":
        return Phase.EPILOGUE
    if OPS[item.op].kind is Kind.ACCUMULATOR:
        return Phase.LOOP  # it is added to there
    return block.phases[values[0]]


def tile_bytes(block: Graph) -> list[int]:
    """Bytes of registers that every value of a block graph takes; a product that is only accumulated is added up in place."""
    readers: list[list[Node]] = [[] for _ in block.types]
    for item in block.nodes:
        for operand in item.operands:
            readers[operand].append(item)

    def takes_none(value: int, maker: Node) -> bool:
        if maker.op == "input":
            return bool(readers[value]) and all(reader.op == "matmul" for reader in readers[value])
        return maker.op == "matmul" and all(
            reader.op in ("accum_sum", "accum_mean") and reader.get("dim") is None for reader in readers[value]
        )

    return [
        0 if takes_none(value, item) else 4 * prod(map(power_of_two, block.types[value].shape))
        for item, values in block.numbered()
        for value in values
    ]


def order_blocks(graph: Graph) -> tuple[Graph, list[BlockOrder]]:
    """The kernel graph with the ops of each block graph in their best order; loads that moved take their operands along."""
    orders: list[BlockOrder] = []
    nodes: list[Node] = []
    for item in graph.nodes:
        if item.op != "block":
            nodes.append(item)
            continue
        block: Graph = item["graph"]
        order = order_block(block)
        orders.append(order)
        inputs = [position for position, inner in enumerate(block.nodes) if inner.op == "input"]
        operand = dict(zip(inputs, item.operands, strict=True))
        operands = tuple(operand[position] for position in order.positions if position in operand)
        attributes = tuple(
            (name, reordered(block, order.positions) if name == "graph" else value) for name, value in item.attributes
        )
        nodes.append(Node(item.op, operands, attributes))
    return replace(graph, nodes=tuple(nodes)), orders


__all__ = [
    "BlockOrder",
    "Order",
    "Problem",
    "Task",
    "best_order",
    "kernels_problem",
    "live_bytes_of",
    "order_block",
    "order_blocks",
    "order_kernels",
    "reordered",
    "tile_bytes",
]
