"""Late broadcasts: every op computes on the narrow tensor, and its result is broadcast last, before the search.

exp(broadcast x) is broadcast(exp x). The sum of x along a broadcast axis is a multiple of x. A matmul that contracts an axis
along which one operand is broadcast multiplies that operand by the sum of the other. In the search a value has only axes along
which it varies. Nothing here is trusted: candidates are verified against the program as the user wrote it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mirage_eg.ir import write
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.moves import BROADCASTS, TRANSPOSES
from mirage_eg.ir.ops import Kind, Level
from mirage_eg.ir.shapes import Shape


@dataclass(frozen=True, slots=True)
class _Operand:
    """A value of the program: a narrow value of the new program, and the shape to which that is broadcast."""

    value: int
    shape: Shape


def with_late_broadcasts(program: Graph) -> Graph:
    """The program with broadcasts only of values that are returned, reshaped, sliced or concatenated.

    `program` holds primitive ops and no block graphs. A program without broadcasts is returned unchanged.
    """
    if not any(item.op in BROADCASTS for item in program.nodes):
        return program
    narrow = _NarrowProgram()
    for item, values in program.numbered():
        narrow.copy(item, [program.types[value].shape for value in values])
    return Graph.of_checked(narrow.checker)


class _NarrowProgram:
    """The new program; `operands` has the values of the old program."""

    def __init__(self) -> None:
        self.checker = Checker(Level.KERNEL)
        self.operands: list[_Operand] = []
        self.memo: dict[Node, int] = {}

    def copy(self, item: Node, shapes: Sequence[Shape]) -> None:
        """Append a node of the old program, on narrow operands."""
        x = [self.operands[operand] for operand in item.operands]
        narrow = [operand.value for operand in x]
        if not shapes:
            self.checker.append(Node(item.op, (self.broadcast(x[0]),), item.attributes))
            return
        [shape] = shapes
        match item.kind, item.op:
            case Kind.REARRANGEMENT, op if op in BROADCASTS:
                value = narrow[0]
            case Kind.ELEMENTWISE, _:
                value = self.append(Node(item.op, tuple(narrow), item.attributes))
            case Kind.REDUCTION, _:
                value = self.reduction(item.op, x[0], item["dim"])
            case Kind.MATMUL, _:
                value = self.product(*x)
            case Kind.REARRANGEMENT, op if op in TRANSPOSES:
                value = self.append(Node(item.op, (self.of_rank(narrow[0], len(shape)),), item.attributes))
            case _:
                value = self.append(Node(item.op, tuple(map(self.broadcast, x)), item.attributes))
        self.operands.append(_Operand(value, shape))

    def append(self, item: Node) -> int:
        """The value of a node; equal nodes are one node, but inputs."""
        if item.op == "input" or item not in self.memo:
            [self.memo[item]] = self.checker.append(item)
        return self.memo[item]

    def shape(self, value: int) -> Shape:
        return self.checker.types[value].shape

    def broadcast(self, x: _Operand) -> int:
        """The value, broadcast to its shape."""
        return x.value if self.shape(x.value) == x.shape else self.append(write.broadcast(x.value, x.shape))

    def of_rank(self, value: int, rank: int) -> int:
        """The value with leading dims of 1 up to `rank`."""
        shape = self.shape(value)
        lead = (1,) * (rank - len(shape))
        return self.append(write.reshape(value, (*lead, *shape))) if lead else value

    def reduction(self, op: str, x: _Operand, dim: int) -> int:
        own = dim - len(x.shape) + len(self.shape(x.value))
        if own >= 0 and self.shape(x.value)[own] == x.shape[dim]:
            return self.append(node(op, x.value, dim=own))
        return self.times(x.value, x.shape[dim]) if op == "sum" else x.value

    def times(self, value: int, count: int) -> int:
        return self.append(node("scale", value, factor=Fraction(count)))

    def product(self, left: _Operand, right: _Operand) -> int:
        """A matmul; an elementwise product if an operand is broadcast along the contracted axis."""
        x, y = (self.of_rank(operand.value, 2) for operand in (left, right))
        contracted = left.shape[-1]
        is_broadcast = [self.shape(x)[-1] == 1 < contracted, self.shape(y)[-2] == 1 < contracted]
        if not any(is_broadcast):
            return self.append(write.matmul(x, y))
        if not is_broadcast[0]:
            x = self.append(node("sum", x, dim=len(self.shape(x)) - 1))
        if not is_broadcast[1]:
            y = self.append(node("sum", y, dim=len(self.shape(y)) - 2))
        product = self.append(write.mul(x, y))
        return self.times(product, contracted) if all(is_broadcast) else product
