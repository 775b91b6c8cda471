"""Logarithms of exponentials, and of products and quotients with an exponential in them, written without that exponential.

log(exp(x)/s) is x − log s wherever it is defined: s has the sign of the quotient. A softmax rounds to 0 where a score is far
below the others, and the logarithm of 0 is not finite; x − log s is.
"""

from fractions import Fraction

from mirage_eg.ir.graph import Graph, Node, node, result_count
from mirage_eg.ir.ops import OPS, Kind


def without_far_logarithms(graph: Graph) -> Graph:
    """The graph with log(exp(x)) written x, log(exp(x)·y) x + log y, and log(exp(x)/y) x − log y, through rearrangements too.

    `graph` holds primitive ops; it is given back as it is where there is nothing to do. What no output needs stays.
    """
    makers = {value: item for item, values in graph.numbered() for value in values}
    has_exponential: dict[int, bool] = {}
    for value, item in makers.items():
        passes = item.op in ("mul", "div", "sqrt") or _is_view(item)
        has_exponential[value] = item.op == "exp" or (passes and any(has_exponential[operand] for operand in item.operands))
    if not any(item.op == "log" and has_exponential[item.operands[0]] for item in graph.nodes):
        return graph
    nodes: list[Node] = []
    place: dict[int, int] = {}
    count = 0

    def append(item: Node) -> int:
        nonlocal count
        nodes.append(item)
        count += result_count(item)
        return count - 1

    def logarithm(value: int) -> int:
        item = makers[value]
        if not has_exponential[value]:
            return append(node("log", place[value]))
        match item.op:
            case "exp":
                return place[item.operands[0]]
            case "mul" | "div":
                return append(node("add" if item.op == "mul" else "sub", *map(logarithm, item.operands)))
            case "sqrt":
                return append(node("scale", logarithm(item.operands[0]), factor=Fraction(1, 2)))
            case _:
                return append(Node(item.op, (logarithm(item.operands[0]),), item.attributes))

    for item, values in graph.numbered():
        if item.op == "log" and has_exponential[item.operands[0]]:
            place[values[0]] = logarithm(item.operands[0])
            continue
        last = append(Node(item.op, tuple(place[operand] for operand in item.operands), item.attributes))
        for behind, value in enumerate(reversed(values)):
            place[value] = last - behind
    return Graph(tuple(nodes), graph.level, graph.grid, graph.loop, graph.threads)


def _is_view(item: Node) -> bool:
    return OPS[item.op].kind is Kind.REARRANGEMENT and len(item.operands) == 1


__all__ = ["without_far_logarithms"]
