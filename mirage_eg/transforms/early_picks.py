"""Early picks: elements are picked by indices before elementwise ops compute all of them.

take_along_dim(log_softmax(x), target) is take_along_dim(x, target) − log Σ exp x: of a row of logarithms that nothing else
reads, one is computed. Nothing here is trusted: candidates are verified against the program as the user wrote it.
"""

from collections import Counter

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.library import CHOICES, ROW_READS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code


def with_early_picks(program: Graph) -> Graph:
    """The program with each `take_along_dim` before the elementwise ops whose result nothing else reads.

    `program` holds primitive ops and no block graphs. A program without such an op is returned unchanged.
    """
    while (earlier := _one_earlier(program)) is not None:
        program = earlier
    return program


def _one_earlier(program: Graph) -> Graph | None:
    """The program with one pick before one op; None where there is none to move."""
    readers = Counter(operand for item in program.nodes for operand in item.operands)
    for item, values in program.numbered():
        if item.op not in CHOICES - ROW_READS or readers[item.operands[0]] != 1:
            continue
        computed = program.node_of[item.operands[0]]
        if computed.kind is Kind.ELEMENTWISE and (picked := _picked_operands(program, computed, item)) is not None:
            return _moved(program, values[0], computed, item, picked)
    return None


def _picked_operands(program: Graph, computed: Node, pick: Node) -> list[bool] | None:
    """Whether elements of each operand are picked, or it has one along the dim; None where one is broadcast otherwise."""
    shape, dim = program.types[pick.operands[0]].shape, pick["dim"]
    picked = []
    for operand in computed.operands:
        own = program.types[operand].shape
        padded = (1,) * (len(shape) - len(own)) + own
        if padded[dim] != 1 and (own != shape):
            return None
        picked.append(padded[dim] != 1)
    return picked if any(picked) else None


def _moved(program: Graph, result: int, computed: Node, pick: Node, picked: list[bool]) -> Graph:
    def rewrite(copy: GraphCopy, item: Node, value: int) -> int:
        operands = [copy.position[operand] for operand in computed.operands]
        for place, is_picked in enumerate(picked):
            if is_picked:
                read = (operands[place], copy.position[pick.operands[1]])
                operands[place] = copy.append(Node(pick.op, read, pick.attributes))
        return copy.append(Node(computed.op, tuple(operands), computed.attributes))

    return without_dead_code(with_rewritten(program, {result}, rewrite))
