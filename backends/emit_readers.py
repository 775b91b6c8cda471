"""How a value is held in a kernel, by what reads it: in the element type of memory, in float32, or only in an accumulator."""

from collections.abc import Sequence

from mirage_eg.backends.emit_tiles import MatmulForm, matmul_form
from mirage_eg.ir.graph import Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind


def accumulates(graph: Graph, value: int, consumers: Sequence[Node]) -> bool:
    """Is this product only summed over the loop, so that tl.dot can add to the accumulator itself?"""
    if graph.phases[value] is not Phase.LOOP or len(consumers) != 1:
        return False
    [consumer] = consumers
    if consumer.op not in ("accum_sum", "accum_mean") or consumer.get("dim") is not None:
        return False
    return _is_dot(graph, next(item for item, values in graph.numbered() if value in values))


def reads_stored(graph: Graph, consumer: Node) -> bool:
    """Does this op take its operand in the element type of memory?"""
    match OPS[consumer.op].kind:
        case Kind.MATMUL:
            return _is_dot(graph, consumer)
        case Kind.REARRANGEMENT | Kind.BOUNDARY:
            return True
        case _:
            return False


def _is_dot(graph: Graph, product: Node) -> bool:
    left, right = product.operands
    return matmul_form(graph.types[left].shape, graph.types[right].shape) is MatmulForm.DOT


__all__ = ["accumulates", "reads_stored"]
