"""Broadcasts before the search: every op is done on the narrow tensor, and its result is broadcast last.

A broadcast copies nothing: exp(broadcast x) is broadcast(exp x), a sum along an axis with which nothing varies is a multiple,
and a product that contracts such an axis multiplies by the sum of the other operand. The search has no axis for a value that
does not vary with it. Nothing here is trusted: what is found is verified against the program as it was written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.graph import Graph, Node, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.shapes import Shape


@dataclass(frozen=True, slots=True)
class _Wide:
    """A value of the program as a value of the new one, and the shape to which that broadcasts."""

    value: int
    shape: Shape


def with_late_broadcasts(program: Graph) -> Graph:
    """The program with broadcasts only of what is returned, reshaped, cut or joined.

    `program` holds primitive ops and no block graphs; it is given back as it is where it broadcasts nothing.
    """
    if not any(item.op == "broadcast" for item in program.nodes):
        return program
    writer = _Writer()
    for item, values in program.numbered():
        writer.write(item, [program.types[value].shape for value in values])
    return Graph(tuple(writer.nodes))


class _Writer:
    """The new program as it grows; `place` has the values of the old one."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.checker = Checker(Level.KERNEL)
        self.place: list[_Wide] = []
        self.known: dict[Node, int] = {}

    def write(self, item: Node, shapes: Sequence[Shape]) -> None:
        """Append what a node computes, on narrow operands."""
        x = [self.place[operand] for operand in item.operands]
        narrow = [operand.value for operand in x]
        if not shapes:
            output = Node(item.op, (self.spread(x[0]),), item.attributes)
            self.checker.append(output)
            self.nodes.append(output)
            return
        [shape] = shapes
        match OPS[item.op].kind, item.op:
            case Kind.REARRANGEMENT, "broadcast":
                made = narrow[0]
            case Kind.ELEMENTWISE, _:
                made = self.append(Node(item.op, tuple(narrow), item.attributes))
            case Kind.REDUCTION, _:
                made = self.reduction(item.op, x[0], item["dim"])
            case Kind.MATMUL, _:
                made = self.product(*x)
            case Kind.REARRANGEMENT, "transpose":
                made = self.append(Node(item.op, (self.of_rank(narrow[0], len(shape)),), item.attributes))
            case _:
                made = self.append(Node(item.op, tuple(map(self.spread, x)), item.attributes))
        self.place.append(_Wide(made, shape))

    def append(self, item: Node) -> int:
        """The value of a node, which is written once."""
        if item.op == "input" or item not in self.known:
            [self.known[item]] = self.checker.append(item)
            self.nodes.append(item)
        return self.known[item]

    def shape(self, value: int) -> Shape:
        return self.checker.types[value].shape

    def spread(self, x: _Wide) -> int:
        """The value in its whole shape."""
        return x.value if self.shape(x.value) == x.shape else self.append(node("broadcast", x.value, shape=x.shape))

    def of_rank(self, value: int, rank: int) -> int:
        """The value with leading dims of 1."""
        shape = self.shape(value)
        lead = (1,) * (rank - len(shape))
        return self.append(node("reshape", value, shape=(*lead, *shape))) if lead else value

    def reduction(self, op: str, x: _Wide, dim: int) -> int:
        own = dim - len(x.shape) + len(self.shape(x.value))
        if own >= 0 and self.shape(x.value)[own] == x.shape[dim]:
            return self.append(node(op, x.value, dim=own))
        return self.times(x.value, x.shape[dim]) if op == "sum" else x.value

    def times(self, value: int, count: int) -> int:
        return self.append(node("scale", value, factor=Fraction(count)))

    def product(self, left: _Wide, right: _Wide) -> int:
        """A matmul; elementwise where one operand does not vary along what is contracted."""
        x, y = (self.of_rank(operand.value, 2) for operand in (left, right))
        contracted = left.shape[-1]
        same = [self.shape(x)[-1] == 1 < contracted, self.shape(y)[-2] == 1 < contracted]
        if not any(same):
            return self.append(node("matmul", x, y))
        if not same[0]:
            x = self.append(node("sum", x, dim=len(self.shape(x)) - 1))
        if not same[1]:
            y = self.append(node("sum", y, dim=len(self.shape(y)) - 2))
        made = self.append(node("mul", x, y))
        return self.times(made, contracted) if all(same) else made


__all__ = ["with_late_broadcasts"]
