"""A lower bound of the shared memory of a block graph, in which Triton places tiles itself; kernels that are kept compile."""

from math import prod

from mirage_eg.backends.triton.storage import is_dot
from mirage_eg.backends.triton.tiles import expanded, padding
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.ops import Kind


def lower_bound(block: Graph, stages: int) -> int:
    """The least bytes of shared memory of a block graph whose loads are fetched ahead in `stages` stages.

    They are those of the loads that a `tl.dot` reads; where there is a loop those of the loop alone, in `stages` − 1 buffers.
    The bound holds for operands that are not swapped.
    """
    graph = expanded(block)
    padded, makers = padding(graph), graph.node_of
    dots = [item for item in makers if item.kind is Kind.MATMUL and is_dot(graph, item)]
    read = {operand for item in dots for operand in item.operands if makers[operand].op == "input"}
    if Phase.LOOP in graph.phases:
        read, buffers = {value for value in read if graph.phases[value] is Phase.LOOP}, stages - 1
    else:
        buffers = 1
    return buffers * sum(prod(padded[value]) * graph.types[value].dtype.itemsize for value in read)


def fits_lower_bound(block: Graph, limit: int, stages: int) -> bool:
    """Whether the lower bound allows a block graph to fit `limit` bytes of shared memory."""
    return lower_bound(block, stages) <= limit
