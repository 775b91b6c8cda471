"""Removes a sort of rows that the program undoes.

transformers sorts rows by expert, computes on them, and restores the order of tokens by the inverse index. Where each row reads
its own weights, the sort is of no use, and it and its indices are kernels. With an order p and its inverse q,
f(x[p])[q] = f(x) for each f that works on rows. Import applies this law: it is trusted, and tested against torch.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_eg.ir import write
from mirage_eg.ir.all_experts import rows_of_all, works_on_rows
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.library import CHOICES, COUNTS, ORDERS, ROW_READS, ROW_WRITES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code

_MOST_ROWS = 128  # 16 tokens of Qwen3-MoE took 314 µs in their order and 329 sorted, on an H200; of more rows none was timed


def with_rows_in_order(program: Graph) -> Graph:
    """The program without orders of rows that it restores; `program` itself where there is none."""
    inverses = {value: order for value in range(len(program.types)) if (order := _inverted(program, value)) is not None}
    if not inverses:
        return program
    copy, changed = GraphCopy(program), False
    rows = {order: _Rows(program, copy, order) for order in inverses.values()}
    for item, values in copy:
        if item.op in ROW_READS and item["dim"] == 0 and item.operands[1] in inverses:
            restored = rows[inverses[item.operands[1]]].in_order(item.operands[0])
            if restored is not None:
                copy.position[values[0]] = restored
                changed = True
                continue
        copy.copy(item, values)
    return without_dead_code(copy.graph()) if changed else program


def with_repeated_rows(program: Graph) -> Graph:
    """The program with x[:, i // k] as each slice of x k times, where i is 0, 1, … up to the last; x itself for k = 1."""
    found = {value: times for value, item in enumerate(program.node_of) if (times := _times(program, item)) is not None}

    def repeated(copy: GraphCopy, item: Node, value: int) -> int:
        x, times = copy.position[item.operands[0]], found[value]
        return copy.append(node("repeat", x, dim=item["dim"], times=times)) if times > 1 else x

    return without_dead_code(with_rewritten(program, found.keys(), repeated)) if found else program


def _times(program: Graph, item: Node) -> int | None:
    """How many times in a row a gather chooses each slice; None where it chooses others."""
    if item.op not in ROW_READS:
        return None
    x, index = item.operands
    maker, times = program.node_of[index], 1
    if maker.op == "floor_divide":
        divisor = Fraction(maker["divisor"])
        index, times = maker.operands[0], int(divisor) if divisor.denominator == 1 else 0
    return times if _is_iota(program, index, (program.types[x].shape[item["dim"]] * times,)) else None


def _inverted(program: Graph, value: int) -> int | None:
    """The order of few rows of which a value is the inverse: it has 0, 1, … written at its places, or is the order of it."""
    item = program.node_of[value]
    if item.op in ROW_WRITES and _is_iota(program, item.operands[2], program.types[value].shape):
        order = item.operands[1]
    elif item.op in ORDERS and item.get("count") is None and not item["descending"]:
        order = item.operands[0]
    else:
        return None
    maker, shape = program.node_of[order], program.types[order].shape
    is_order = maker.op in ORDERS and maker.get("count") is None and len(shape) == 1
    return order if is_order and shape == program.types[value].shape and _lose_order(program, shape[0]) else None


def _lose_order(program: Graph, rows: int) -> bool:
    """Whether rows may be in any order: few, or so many that products of all experts take the place of theirs."""
    return 1 < rows and (rows <= _MOST_ROWS or rows in rows_of_all(program))


def _is_iota(program: Graph, value: int, shape: tuple[int, ...]) -> bool:
    return program.node_of[value].op in COUNTS and program.types[value].shape == shape


@dataclass
class _Rows:
    """Values with rows in another order: the position in the copy of each with its rows in order, None where none is known."""

    program: Graph
    copy: GraphCopy
    order: int
    known: dict[int, int | None] = field(default_factory=dict)

    def in_order(self, value: int) -> int | None:
        """The position of u with value = u[order]."""
        if value not in self.known:
            self.known[value] = self._computed(value)
        return self.known[value]

    def _computed(self, value: int) -> int | None:
        program, count = self.program, self.program.types[self.order].shape[0]
        if value == self.order:
            return self.copy.append(write.places(count))
        item, shape = program.node_of[value], program.types[value].shape
        if item.op == "output" or not shape or shape[0] != count:
            return None
        if item.op in CHOICES:
            return self._chosen(item, count)
        if not item.operands or not works_on_rows(program, item, value):
            return None
        operands = [self._operand(item, operand, len(shape)) for operand in item.operands]
        known = tuple(it for it in operands if it is not None)
        return self.copy.append(replace(item, operands=known)) if len(known) == len(operands) else None

    def _chosen(self, item: Node, count: int) -> int | None:
        """Rows of another tensor: by the order itself, or by what has its places in order."""
        source, index = item.operands
        shape, places = self.program.types[source].shape, self.program.types[index].shape
        if item["dim"] != 0 or len(places) != 1 or (item.op not in ROW_READS and len(shape) != 1):
            return None
        if index == self.order and shape[0] == count:
            return self.copy.position[source]
        own = self.in_order(index)
        return None if own is None else self.copy.append(replace(item, operands=(self.copy.position[source], own)))

    def _operand(self, item: Node, operand: int, rank: int) -> int | None:
        """An operand with its rows in order; as it is, where it is broadcast to all rows."""
        shape = self.program.types[operand].shape
        broadcasts = item.kind in (Kind.ELEMENTWISE, Kind.MATMUL)
        return self.copy.position[operand] if broadcasts and (len(shape) < rank or shape[0] == 1) else self.in_order(operand)
