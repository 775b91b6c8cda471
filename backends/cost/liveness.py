"""The values of a graph that are live at once, and their bytes: the register model of the search and of the op order.

A value is live from the task that defines it to its last reader. In a block graph the phases are taken one by one: a value that
a later phase reads is live to the end of its phase, and accumulators are live through the loop. Bytes are of padded float32
tiles in registers; a load that only products with vectors read keeps its type, since they convert it element by element. Some
values take none: a load that only tl.dot reads, as it is or transposed, goes through shared memory, a product that is only
accumulated is added in place, a tile that is loaded behind the loop is added as it comes, and an elementwise result that is
only reduced, stored, or multiplied with a vector is so element by element. In a kernel graph, bytes are of intermediates in
device memory.

A block of rows has no loop and no tl.dot. There an elementwise op works in place: its result takes the registers of operands
that end with it. Registers that would hold padding alone are none, since the compiler drops them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mirage_eg.backends.triton.storage import late_loads
from mirage_eg.backends.triton.tiles import padded_elements, power_of_two
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, Phase, adds_tiles
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES, VIEWS
from mirage_eg.ir.ops import OPS, Kind

_FLOAT32 = 4  # bytes
_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class OrderTask:
    """A task: the tasks that precede it, the values that it reads, and the values that it defines with their sizes."""

    after: frozenset[int]
    reads: frozenset[int]
    makes: tuple[tuple[int, int], ...]  # value, bytes


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """Tasks, values that are live before them with their sizes, and values that are live after the last task."""

    tasks: tuple[OrderTask, ...]
    live_before: tuple[tuple[int, int], ...] = ()
    live_after: frozenset[int] = frozenset()


def live_bytes_of(problem: OrderProblem, tasks: Sequence[int]) -> int:
    """The most live bytes of an order; while a task runs, the values that it reads and defines are live."""
    return max(sum(live.values()) for live in _live(problem, tasks))


def _live(problem: OrderProblem, tasks: Sequence[int], in_place: Collection[int] = ()) -> Iterator[dict[int, int]]:
    """The values that are live before the first task and during each, with their bytes; tasks `in_place` replace operands."""
    live = dict(needed_before(problem))
    yield live
    last = {value: step for step, i in enumerate(tasks) for value in problem.tasks[i].reads}
    for step, i in enumerate(tasks):
        makes = dict(problem.tasks[i].makes)
        later = {value: size for value, size in live.items() if value in problem.live_after or last.get(value, -1) > step}
        yield (later if i in in_place else live) | makes
        live = later | {value: size for value, size in makes.items() if value in problem.live_after or value in last}


@dataclass(frozen=True, slots=True)
class LiveTiles:
    """The sets of values of a block graph whose tiles are in registers at once, for its nodes in their order.

    `element_bytes` are those of an element of each value; `rows`: of a block of rows.
    """

    sets: tuple[tuple[int, ...], ...]
    element_bytes: tuple[int, ...]
    rows: bool

    def nbytes(self, shapes: Sequence[Sequence[int]], cluster: int = 1) -> int:
        """The most live bytes in each of so many thread blocks, for tiles of these shapes."""
        sizes = []
        for shape, size in zip(shapes, self.element_bytes, strict=True):
            slowest = self.rows and cluster == 1  # blocks of a cluster run the same code
            for extent in shape:
                padded = power_of_two(extent)
                if slowest and extent > 1:  # a tile near the limit has 16 or more rounds of all threads, along its slowest dim
                    padded, slowest = -(-extent * _ROUNDS // padded) * padded // _ROUNDS if padded > _ROUNDS else extent, False
                size *= padded
            sizes.append(size)
        return max((sum([sizes[value] for value in values]) for values in self.sets), default=0) // cluster


@lru_cache(maxsize=1 << 10)
def live_tiles(block: Graph) -> LiveTiles:
    """The tiles that are live at once in a block graph; only sets that no other set contains."""
    rows, sets = is_of_rows(block), set[frozenset[int]]()
    for problem, nodes in phase_problems(block):
        elementwise = (i for i, position in enumerate(nodes) if OPS[block.nodes[position].op].kind is Kind.ELEMENTWISE)
        in_place = frozenset(elementwise if rows else ())
        sets |= {
            frozenset(value for value, size in live.items() if size) for live in _live(problem, range(len(nodes)), in_place)
        }
    largest = tuple(tuple(sorted(values)) for values in sets if not any(values < other for other in sets))
    return LiveTiles(largest, tuple(element_bytes(block)), rows)


def live_bytes(block: Graph) -> int:
    """The most bytes of registers that the tiles of a block graph take at once, in each thread block of its cluster."""
    return live_tiles(block).nbytes([kind.shape for kind in block.types], block.cluster)


def needed_before(problem: OrderProblem) -> tuple[tuple[int, int], ...]:
    """The values that are live before the tasks and that a task or a later reader needs."""
    needed = problem.live_after.union(*(task.reads for task in problem.tasks))
    return tuple((value, size) for value, size in problem.live_before if value in needed)


def kernels_problem(graph: Graph) -> tuple[OrderProblem, list[int]]:
    """The order problem of the nodes of a kernel graph but inputs and outputs, and the positions of these nodes.

    A view lives in the memory of its base. Outputs live in the memory of the caller and count 0.
    """
    shown: dict[int, int] = {}
    for item, values in graph.numbered():
        for value in values:
            base = item.operands[0] if item.op in VIEWS else None
            shown[value] = value if base is None else shown[base]
    given = {shown[i] for item in graph.outputs for i in item.operands}
    tasks, positions = list[OrderTask](), list[int]()
    maker: dict[int, int] = {}
    for position, (item, values) in enumerate(graph.numbered()):
        if item.kind is Kind.BOUNDARY:
            continue
        makes = tuple((value, 0 if value in given or shown[value] != value else graph.types[value].nbytes) for value in values)
        after = frozenset(maker[i] for i in item.operands if i in maker)
        reads = frozenset(shown[i] for i in item.operands if shown[i] in maker)
        maker |= dict.fromkeys(values, len(tasks))
        tasks.append(OrderTask(after, reads, makes))
        positions.append(position)
    return OrderProblem(tuple(tasks)), positions


def phase_problems(block: Graph) -> list[tuple[OrderProblem, list[int]]]:
    """A problem for each phase, with the positions of its nodes."""
    sizes, made = tile_bytes(block), [values for _, values in block.numbered()]
    # of every node: where it is written; outputs are written after all values
    phase_of = [_written_in(block, item, values) for item, values in zip(block.nodes, made, strict=True)]
    users: dict[int, list[int]] = {}
    for position, item in enumerate(block.nodes):
        for operand in item.operands:
            users.setdefault(operand, []).append(position)
    maker = {value: position for position, values in enumerate(made) for value in values}
    sums = [value for value, position in maker.items() if OPS[block.nodes[position].op].kind is Kind.ACCUMULATOR]
    problems = []
    for phase in Phase:
        nodes = [position for position, own in enumerate(phase_of) if own is phase]
        number = {position: i for i, position in enumerate(nodes)}
        live_before = {
            value: sizes[value]
            for value, position in maker.items()
            if phase_of[position] < phase and any(phase_of[user] >= phase for user in users.get(value, ()))
        }
        if phase is Phase.LOOP:
            live_before |= {value: sizes[value] for value in sums}
        live_after = {value for value in maker if any(phase_of[user] > phase for user in users.get(value, ()))} | set(sums)
        if phase is Phase.EPILOGUE:
            live_after = set()
            live_before |= {value: sizes[value] for value in sums}
        tasks = []
        last_output = None
        for position in nodes:
            item = block.nodes[position]
            after = {number[maker[i]] for i in item.operands if maker[i] in number}
            if item.op == "output":
                after |= set() if last_output is None else {last_output}
                last_output = number[position]
            makes = tuple((value, sizes[value]) for value in made[position] if value not in live_before)
            tasks.append(OrderTask(frozenset(after), frozenset(item.operands), makes))
        problems.append((OrderProblem(tuple(tasks), tuple(live_before.items()), frozenset(live_after)), nodes))
    return problems


def _written_in(block: Graph, item: Node, values: range) -> Phase:
    if item.op == "output":
        return Phase.EPILOGUE
    if item.kind is Kind.ACCUMULATOR:
        return Phase.LOOP  # it is added to there
    return block.phases[values[0]]


def tile_bytes(block: Graph) -> list[int]:
    """Bytes of registers of every value of a block graph, 0 for those that no tile holds."""
    sizes = zip(block.types, element_bytes(block), strict=True)
    return [size * padded_elements(kind.shape) for kind, size in sizes]


def element_bytes(block: Graph) -> list[int]:
    """Bytes of registers of an element of every value of a block graph, 0 for values that no tile holds."""
    readers: list[list[Node]] = [[] for _ in block.types]
    made: dict[Node, int] = {}  # of reshapes, their results
    for item, values in block.numbered():
        for operand in item.operands:
            readers[operand].append(item)
        if item.op in RESHAPES:
            made[item] = values[0]
    streamed = _streamed(block) | late_loads(block)
    staged, loaded = staged_loads(block), set[int]()  # the last: loads, and what they are reshaped to

    def by_vectors(value: int) -> bool:
        """Whether all that reads a load, or what it is reshaped to, are products with vectors."""
        return bool(readers[value]) and all(
            is_of_vector(block, reader) if reader.kind is Kind.MATMUL else reader.op in RESHAPES and by_vectors(made[reader])
            for reader in readers[value]
        )

    def of(value: int, maker: Node) -> int:
        if maker.op == "input" or (maker.op in RESHAPES and maker.operands[0] in loaded):
            loaded.add(value)
        kinds = {reader.kind for reader in readers[value]}
        if value in streamed or value in staged:
            return 0
        if value in loaded and by_vectors(value):
            return 0 if kinds == {Kind.REARRANGEMENT} else min(_FLOAT32, block.types[value].dtype.itemsize)
        if value in loaded and block.types[value].dtype is DType.bool:
            return block.types[value].dtype.itemsize  # a mask is read where it is compared
        added = all(adds_tiles(reader) for reader in readers[value])
        return 0 if maker.kind is Kind.MATMUL and added else _FLOAT32

    return [of(value, item) for item, values in block.numbered() for value in values]


def staged_loads(block: Graph) -> frozenset[int]:
    """The loads that only tl.dot reads, as they are or as views of them, and these views: in shared memory alone."""
    others, found = set[int](), set[int]()  # the values that something else reads
    for item, values in reversed(block.numbered()):
        is_dot = item.kind is Kind.MATMUL and not is_of_vector(block, item)
        if not is_dot and (not shows_tile(block, item, values) or values[0] in others):
            others.update(item.operands)
    for item, values in block.numbered():
        if item.op == "input" or (shows_tile(block, item, values) and item.operands[0] in found):
            found |= {*values} - others
    return frozenset(found)


def shows_tile(block: Graph, item: Node, values: Sequence[int]) -> bool:
    """Whether an op transposes a tile, or adds or removes dims of one element: tl.dot reads such a load in shared memory."""
    if item.op not in RESHAPES:
        return item.op in TRANSPOSES
    before, after = ([it for it in block.types[value].shape if it != 1] for value in (item.operands[0], values[0]))
    return before == after


def is_of_rows(block: Graph) -> bool:
    """Whether a block has no loop and no tl.dot: it holds rows at once, with as many threads as they need."""
    return block.loop == 1 and not multiplies_tiles(block)


def multiplies_tiles(block: Graph) -> bool:
    """Whether a block has a tl.dot."""
    return any(item.kind is Kind.MATMUL and not is_of_vector(block, item) for item in block.nodes)


_OF_PRODUCTS = (Kind.BOUNDARY, Kind.MATMUL, Kind.REARRANGEMENT, Kind.ACCUMULATOR)


def only_multiplies(block: Graph) -> bool:
    """Whether a block has a loop that only loads and multiplies: what else it computes follows the loop."""
    looped = [item.kind for item, values in block.numbered() if values and block.phases[values[0]] is Phase.LOOP]
    return Kind.MATMUL in looped and all(kind in _OF_PRODUCTS for kind in looped)


def computes_behind(block: Graph) -> bool:
    """Whether more than a product follows a loop that only multiplies."""
    return only_multiplies(block) and any(item.kind not in _OF_PRODUCTS for item in block.nodes)


def is_of_vector(block: Graph, product: Node) -> bool:
    """Whether a matmul has one row or one column: it is no tl.dot, with tiles of any size."""
    left, right = (block.types[operand].shape for operand in product.operands)
    return left[-2] == 1 or right[-1] == 1


_STORED, _HELD = -1, -2


def _streamed(block: Graph) -> frozenset[int]:
    """Elementwise values whose chains of elementwise readers end in one sum, or in outputs alone.

    A sum is a reduction, or a product with a vector; what such a product reads may be a view.
    """
    ends: list[set[int]] = [set() for _ in block.types]  # of every value: the nodes of reductions, _STORED, _HELD
    kinds = [item.kind for item in block.nodes]
    numbered = block.numbered()
    computed = set[int]()
    for item, values in numbered:
        if item.kind is Kind.ELEMENTWISE or (item.op in RESHAPES | TRANSPOSES and item.operands[0] in computed):
            computed.update(values)

    def passes_through(position: int) -> bool:
        values = numbered[position][1]
        return not computed.isdisjoint(values) and len(ends[values[0]]) == 1 and _HELD not in ends[values[0]]

    for position in reversed(range(len(numbered))):
        item, values = numbered[position]
        if item.op == "output":
            reached = {_STORED}
        elif kinds[position] is Kind.REDUCTION or (kinds[position] is Kind.MATMUL and is_of_vector(block, item)):
            reached = {position}
        else:
            reached = ends[values[0]] if passes_through(position) else {_HELD}
        for operand in item.operands:
            ends[operand] |= reached
    return frozenset(values[0] for position, (_, values) in enumerate(numbered) if passes_through(position))
