"""The order of the kernels of a µGraph, and of the ops of a block graph, with the fewest live bytes.

Both are one problem: tasks with dependences define values that live until their last reader has run; the largest live set is
minimised. It is solved exactly by a best-first search over sets of completed tasks: the live set depends on the set alone, not
on its order. A task that frees at least as many bytes as it defines, within the bytes needed anyway, runs at once; this loses
no solution, as it only lowers the live bytes in between. After too many sets the given order stays, with the lower bound that
is proved by then.

`backends.cost.liveness` has the problems of both levels. The prologue, the loop and the epilogue of a block graph are one each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush

from mirage_eg.backends.cost.liveness import OrderProblem, kernels_problem, live_bytes_of, needed_before, phase_problems
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node
from mirage_eg.optimizer.heuristics import OPTIMIZER

FULL_TASKS = 64  # tasks up to which as many sets are tried as are allowed


@dataclass(frozen=True, slots=True)
class Order:
    """Tasks in order, the most live bytes, and a proved lower bound for every order."""

    tasks: tuple[int, ...]
    live_bytes: int
    lower_bound: int

    @property
    def optimal(self) -> bool:
        """Whether no order is better, by proof."""
        return self.live_bytes == self.lower_bound


@lru_cache(maxsize=4096)
def best_order(problem: OrderProblem, most: int = OPTIMIZER.order_sets) -> Order:
    """An order of the fewest live bytes; of equal ones, one that is close to the given order."""
    return _Search(replace(problem, live_before=needed_before(problem)), most).run()


class _Search:
    """Best-first over sets of tasks as bit masks; plain ints and tuples, for it is an inner loop."""

    def __init__(self, problem: OrderProblem, most: int) -> None:
        self.problem, self.count = problem, len(problem.tasks)
        self.most = most * min(1, FULL_TASKS / max(1, self.count)) ** 2  # of many tasks each set takes so much longer
        self.sizes = dict(problem.live_before) | {value: size for task in problem.tasks for value, size in task.makes}
        self.before = [sum(1 << i for i in task.after) for task in problem.tasks]
        self.made = [sum(size for _, size in task.makes) for task in problem.tasks]
        readers = dict.fromkeys(self.sizes, 0)
        for i, task in enumerate(problem.tasks):
            for value in readers.keys() & task.reads:
                readers[value] |= 1 << i
        self.ends = [  # of each task the values that may end with it: their bytes, and their readers
            [
                (self.sizes[value], readers[value])
                for value in [*task.reads, *(value for value, _ in task.makes)]
                if value in self.sizes and value not in problem.live_after
            ]
            for task in problem.tasks
        ]

    def freed(self, mask: int, i: int) -> int:
        """Bytes that task i frees after the tasks of `mask`: values that it reads, and its own values without a reader."""
        left = ~(mask | 1 << i)
        return sum(size for size, readers in self.ends[i] if not readers & left)

    def run(self) -> Order:
        start = sum(size for _, size in self.problem.live_before)
        while_it_runs = [
            self.made[i] + sum(self.sizes.get(value, 0) for value in task.reads) for i, task in enumerate(self.problem.tasks)
        ]
        lower_bound = max([start, *while_it_runs])
        given = tuple(range(self.count))
        best = live_bytes_of(self.problem, given)
        if best == lower_bound or not self.count:
            return Order(given, best, best)
        full = (1 << self.count) - 1
        heap: list[tuple[int, int, tuple[int, ...], int, int]] = [(lower_bound, 0, (), 0, start)]
        visited: set[int] = set()
        while heap:
            peak, _, done, mask, live = heappop(heap)
            if peak >= best:
                break
            if mask in visited:
                continue
            visited.add(mask)
            if len(visited) > self.most:
                return Order(given, best, peak)
            done, mask, live = self._run_free(done, mask, live, peak)
            if mask == full:
                return Order(done, peak, peak)
            for i in range(self.count):
                if not mask >> i & 1 and not self.before[i] & ~mask:
                    reached = max(peak, live + self.made[i])
                    then = mask | 1 << i
                    if then not in visited and reached < best:
                        entry = (reached, -len(done), (*done, i), then, live + self.made[i] - self.freed(mask, i))
                        heappush(heap, entry)
        return Order(given, best, best)

    def _run_free(self, done: tuple[int, ...], mask: int, live: int, peak: int) -> tuple[tuple[int, ...], int, int]:
        """Run every task that frees at least the bytes that it defines, within `peak` live bytes."""
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


def order_kernels(graph: Graph) -> tuple[Graph, Order]:
    """The kernel graph with its nodes in an order of the fewest live bytes of device memory."""
    problem, positions = kernels_problem(graph)
    order = best_order(problem)
    inputs = [i for i, item in enumerate(graph.nodes) if item.op == "input"]
    outputs = [i for i, item in enumerate(graph.nodes) if item.op == "output"]
    return reordered(graph, [*inputs, *(positions[i] for i in order.tasks), *outputs]), order


def reordered(graph: Graph, positions: Sequence[int]) -> Graph:
    """The graph with its nodes in this order, which respects dependences; inputs and outputs are numbered in the new order."""
    copy = GraphCopy(graph)
    for position in positions:
        copy.copy(*graph.numbered()[position])
    return copy.graph()


# --- Ops of a block ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """Positions of the nodes of a block graph in order; the most live bytes as given and as ordered; the lower bound."""

    positions: tuple[int, ...]
    before: int
    live_bytes: int
    lower_bound: int


def order_block(block: Graph) -> BlockOrder:
    """An order of the ops of a block graph with the fewest live bytes; phases sequentially, outputs in order."""
    problems = phase_problems(block)
    positions: list[int] = []
    before = live_bytes = lower_bound = 0
    for problem, nodes in problems:
        order = best_order(problem)
        positions += [nodes[i] for i in order.tasks]
        before = max(before, live_bytes_of(problem, range(len(nodes))))
        live_bytes, lower_bound = max(live_bytes, order.live_bytes), max(lower_bound, order.lower_bound)
    assert len(positions) == len(block.nodes)
    return BlockOrder(tuple(positions), before, live_bytes, lower_bound)


def order_blocks(graph: Graph) -> tuple[Graph, list[BlockOrder]]:
    """The kernel graph with the ops of each block graph in their best order; operands follow moved loads."""
    order_of = {block: order_block(block) for block in dict.fromkeys(graph.blocks)}
    block_of = {block: reordered(block, order.positions) for block, order in order_of.items()}
    orders: list[BlockOrder] = []
    nodes: list[Node] = []
    for item in graph.nodes:
        if item.op != "block":
            nodes.append(item)
            continue
        block: Graph = item["graph"]
        order = order_of[block]
        orders.append(order)
        inputs = [position for position, inner in enumerate(block.nodes) if inner.op == "input"]
        operand = dict(zip(inputs, item.operands, strict=True))
        operands = tuple(operand[position] for position in order.positions if position in operand)
        attributes = tuple((name, block_of[block] if name == "graph" else value) for name, value in item.attributes)
        nodes.append(Node(item.op, operands, attributes))
    return replace(graph, nodes=tuple(nodes)), orders
