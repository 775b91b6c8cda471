"""Softmax and log softmax shifted by their maxima, for runs on numbers whose exponentials overflow; kernels always shift."""

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.passes import without_dead_code


def with_shifted_softmax(program: Graph) -> Graph:
    """The program with softmax(x − max x) for softmax(x), and z − log Σ exp z with z = x − max x for x − log Σ exp x.

    The program itself where it has neither.
    """
    makers = [item for item, values in program.numbered() for _ in values]
    nodes: list[Node] = []
    place: list[int] = []  # of each value of the program
    count = 0

    def append(item: Node, results: int = 1) -> int:
        nonlocal count
        nodes.append(item)
        count += results
        return count - results

    def shifted(x: int, dim: int) -> int:
        return append(node("sub", place[x], append(node("max", place[x], dim=dim))))

    for item, values in program.numbered():
        operands = tuple(place[i] for i in item.operands)
        if item.op == "softmax":
            place.append(append(Node("softmax", (shifted(item.operands[0], item["dim"]), *operands[1:]), item.attributes)))
        elif (dim := _dim_of_log_softmax(item, makers)) is not None:
            z = shifted(item.operands[0], dim)
            logarithm = append(node("log", append(node("sum", append(node("exp", z)), dim=dim))))
            place.append(append(node("sub", z, logarithm)))
        else:
            first = append(Node(item.op, operands, item.attributes), len(values))
            place += range(first, first + len(values))
    return program if len(nodes) == len(program.nodes) else without_dead_code(Graph(tuple(nodes)))


def _dim_of_log_softmax(item: Node, makers: list[Node]) -> int | None:
    """The dim of x − log Σ exp x; None for any other op."""
    if item.op != "sub":
        return None
    x, value = item.operands
    logarithm = makers[value]
    total = makers[logarithm.operands[0]] if logarithm.op == "log" else logarithm
    exponential = makers[total.operands[0]] if total.op == "sum" else total
    ops = logarithm.op, total.op, exponential.op
    return total["dim"] if ops == ("log", "sum", "exp") and exponential.operands == (x,) else None
