"""Rewrites logarithms of exponentials, and of products and quotients that contain one, without the exponential.

log(exp(x)/s) = x − log s wherever the left side is defined: s has the sign of the quotient. A softmax rounds to 0 where a score
is far below the others; then log 0 is not finite, but x − log s is.
"""

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.elementwise import DIVISIONS, FACTORS, PRODUCTS, ROOTS, power_of
from mirage_eg.ir.ops import Kind


def without_far_logarithms(graph: Graph) -> Graph:
    """The graph with log(exp(x)) written x, log(exp(x)·y) x + log y, and log(exp(x)/y) x − log y, through rearrangements too.

    `graph` consists of primitive ops. Without such a logarithm the result is `graph` itself. Dead code is kept.
    """
    has_exponential: dict[int, bool] = {}
    for value, item in enumerate(graph.node_of):
        is_view = item.kind is Kind.REARRANGEMENT and len(item.operands) == 1
        passes = item.op in FACTORS or item.op in ROOTS - DIVISIONS or is_view
        has_exponential[value] = item.op == "exp" or (passes and any(has_exponential[operand] for operand in item.operands))
    far = {value for value, item in enumerate(graph.node_of) if item.op == "log" and has_exponential[item.operands[0]]}

    def logarithm(copy: GraphCopy, value: int) -> int:
        item = graph.node_of[value]
        if not has_exponential[value]:
            return copy.append(node("log", copy.position[value]))
        if item.op == "exp":
            return copy.position[item.operands[0]]
        if item.op in FACTORS:
            return copy.append(
                (write.add if item.op in PRODUCTS else write.sub)(*(logarithm(copy, it) for it in item.operands))
            )
        if item.op in ROOTS:
            return copy.append(node("scale", logarithm(copy, item.operands[0]), factor=power_of(item.op, item.mapping)))
        return copy.append(Node(item.op, (logarithm(copy, item.operands[0]),), item.attributes))

    return with_rewritten(graph, far, lambda copy, item, _: logarithm(copy, item.operands[0]))
