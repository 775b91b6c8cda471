"""1×1 convolutions that are written as products: reshape(w [O, C] @ reshape(x) [N, C, H·W])."""

from math import prod

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.windows import CONV2D

POINTWISE = node(CONV2D, 0, 1, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1)


def pointwise_convolution(program: Graph, item: Node, value: int) -> tuple[int, int] | None:
    """The image and the filter whose 1×1 convolution a reshape gives; None if it gives another value."""
    product = program.node_of[item.operands[0]]
    if product.kind is not Kind.MATMUL or not all(program.node_of[operand].op in RESHAPES for operand in product.operands):
        return None
    weight, image = (program.node_of[operand].operands[0] for operand in product.operands)
    filters, x, y = (program.types[it].shape for it in (weight, image, value))
    matrix, columns = (program.types[operand].shape for operand in product.operands)
    as_written = len(x) == len(y) == 4 and len(filters) == 4 and filters[2:] == (1, 1) and x[0] == y[0] and x[2:] == y[2:]
    lead = x[:1] if x and x[0] > 1 else ()
    fits = as_written and matrix == filters[:2] and columns == (*lead, x[1], prod(x[2:])) and y[1] == filters[0]
    return (image, weight) if fits else None
