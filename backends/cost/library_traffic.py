"""How long elementwise kernels, norms and softmaxes of the library take, besides their traffic."""

from math import prod

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import ROW_NORMS, SOFTMAXES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape

_BROADCAST = 2.8
"""How much longer an elementwise kernel of torch takes where an operand is broadcast, for it loads single elements. On an H200
a bias was added to 16384 × 2304 numbers in bfloat16 in 96 µs, to 25344 × 2304 in 144, and to 32768 × 512 in 44."""
_SHORT_NORM, _SHORT_ROW_BYTES = 2.9, 2048
"""How much longer torch's norms of short rows take than their traffic: LayerNorm of rows of 768 in bfloat16 took 22 µs for
8,192 rows on an H200, 39 for 16,384 and 57 for 25,344."""


def waits_of(graph: Graph, item: Node, value: int) -> float:
    """The time of an elementwise kernel or norm of the library, in times of its traffic."""
    kind = graph.types[value]
    if item.kind is Kind.ELEMENTWISE and any(graph.types[it].shape != kind.shape for it in item.operands):
        return _BROADCAST
    if item.op in ROW_NORMS:
        row = prod(kind.shape[len(kind.shape) - item["dims"] :]) * kind.dtype.itemsize
        return _SHORT_NORM if row <= _SHORT_ROW_BYTES else 1.0
    return 1.0


def thread_blocks(item: Node, shape: Shape) -> int:
    """The rows of a norm or softmax, each of which one thread block of the library computes.

    On an H200 torch's LayerNorm of 16 rows of 4,194,304 floats took 8,366 µs, 60 times as long as a copy.
    """
    dims = {item["dim"]} if item.op in SOFTMAXES else range(len(shape))[-item["dims"] :] if item.op in ROW_NORMS else ()
    return prod(extent for dim, extent in enumerate(shape) if dim not in dims) if dims else 0
