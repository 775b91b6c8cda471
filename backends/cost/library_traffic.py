"""How long elementwise kernels, norms and reductions of the library take, besides their traffic, and its thread blocks."""

from math import ceil, prod

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import ROW_NORMS, SOFTMAXES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.shapes import matmul as matmul_shape

_BROADCAST = 2.8
"""How much longer an elementwise kernel of torch takes where an operand is broadcast, for it loads single elements. On an H200
a bias was added to 16384 × 2304 numbers in bfloat16 in 96 µs, to 25344 × 2304 in 144, and to 32768 × 512 in 44."""
_SHORT_NORM, _SHORT_ROW_BYTES = 2.9, 2048
"""How much longer torch's norms of short rows take than their traffic: LayerNorm of rows of 768 in bfloat16 took 22 µs for
8,192 rows on an H200, 39 for 16,384 and 57 for 25,344."""

_SHORT_REDUCTION, _SHORT_DIM = 19, 16
"""The bytes of traffic in whose time torch reduces an element of a short dim. On an H200 six maxima of dims of 2 and 3, of 474
million floats, took 2,106 µs, and 689 by their traffic."""


def waits_of(graph: Graph, item: Node, value: int) -> float:
    """The time of an elementwise kernel, norm or reduction of the library, in times of its traffic."""
    kind = graph.types[value]
    if item.kind is Kind.REDUCTION:
        given = graph.types[item.operands[0]]
        moved, elements = kind.nbytes + given.nbytes, prod(given.shape)
        return max(1.0, _SHORT_REDUCTION * elements / moved) if given.shape[item["dim"]] <= _SHORT_DIM else 1.0
    if item.kind is Kind.ELEMENTWISE and any(graph.types[it].shape != kind.shape for it in item.operands):
        return _BROADCAST
    if item.op in ROW_NORMS:
        row = prod(kind.shape[len(kind.shape) - item["dims"] :]) * kind.dtype.itemsize
        return _SHORT_NORM if row <= _SHORT_ROW_BYTES else 1.0
    return 1.0


def rows_of(item: Node, shape: Shape) -> int:
    """The rows of a norm or softmax, each of which one thread block of the library computes.

    On an H200 torch's LayerNorm of 16 rows of 4,194,304 floats took 8,366 µs, 60 times as long as a copy.
    """
    dims = {item["dim"]} if item.op in SOFTMAXES else range(len(shape))[-item["dims"] :] if item.op in ROW_NORMS else ()
    return prod(extent for dim, extent in enumerate(shape) if dim not in dims) if dims else 0


_TILE, _TERMS, _LEAST_TILES = 64, 4096, 8  # rows and columns, terms of a part, and the least of a library product (fitted)


def tiles_of(graph: Graph, item: Node) -> int:
    """The thread blocks of a product: its tiles, times the parts of its terms; 0 of other ops.

    On an H200 one row in float16 took 4.3 µs for 1,536 terms and 256 columns, 6.2 for 1,536 and 1,536, 12.8 for 2,560 and
    1,024, 7.9 for 2,560 and 4,096, 12.4 for 4,096 and 4,096, and 17.1 for 10,240 and 2,560.
    """
    if item.kind is not Kind.MATMUL:
        return 0
    left, right = (graph.types[operand].shape for operand in item.operands)
    *batch, rows, columns = matmul_shape([left, right], {})  # the kernel may write them in another shape
    if len(right) == 2:
        batch, rows = [], prod((*batch, rows))
    return max(_LEAST_TILES, prod(batch) * ceil(rows / _TILE) * ceil(columns / _TILE) * ceil(left[-1] / _TERMS))
