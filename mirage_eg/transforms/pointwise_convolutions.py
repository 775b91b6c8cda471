"""Convolutions of 1×1 windows as matrix products, which the block search fuses with the ops around them.

conv(x, w) = reshape(w [O, C] @ reshape(x) [N, C, H·W])        stride 1, no pads, one group
           = reshape(reshape(x) [N, C] @ wᵀ [C, O])            likewise, where N images have one position each

Large ones in float32 stay convolutions: torch computes these in TF32 by default, on matrix units, and products without.
"""

from math import prod

from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.ir import write
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.pointwise_convolution import POINTWISE
from mirage_eg.ir.windows import CONVOLUTIONS

_LARGE = 1 << 28  # operations, above which a product in float32 takes longer than TF32, and a kernel for what follows


def with_pointwise_products(program: Graph) -> Graph:
    """The program with products in the place of 1×1 convolutions; `program` itself where it has none."""
    shapes = [kind.shape for kind in program.types]

    def product_of(copy: GraphCopy, item: Node, value: int) -> int:
        x, weight = (copy.position[operand] for operand in item.operands)
        images, channels, *extents = shapes[item.operands[0]]
        matrix = copy.append(write.reshape(weight, shapes[item.operands[1]][:2]))
        if images > prod(extents) == 1:
            rows = copy.append(write.reshape(x, (images, channels)))
            product = copy.append(write.matmul(rows, copy.append(write.transpose(matrix, (1, 0)))))
        else:
            lead = (images,) if images > 1 else ()
            columns = copy.append(write.reshape(x, (*lead, channels, prod(extents))))
            product = copy.append(write.matmul(matrix, columns))
        return copy.append(write.reshape(product, shapes[value]))

    pointwise = {values[0] for item, values in program.numbered() if _is_pointwise(program, item, values)}
    return with_rewritten(program, pointwise, product_of)


def _is_pointwise(program: Graph, item: Node, values: range) -> bool:
    if item.op not in CONVOLUTIONS:
        return False
    weight = program.types[item.operands[1]]
    is_product = {*weight.shape[2:], *item["strides"], item["groups"]} == {1} and not any(item["pads"])
    return is_product and (weight.dtype is not DType.float32 or flops_of_product(program, item, values[0]) < _LARGE)


def with_convolutions(program: Graph) -> Graph:
    """The program with 1×1 convolutions in the place of products of a matrix and a batch of matrices; itself if it has none.

    The library computes these channels last as one product, and a batch of products of few columns slowly.
    """
    copy, shapes = GraphCopy(program), [kind.shape for kind in program.types]
    found = False
    for item, values in copy:
        if item.kind is not Kind.MATMUL or not _is_of_images(program, item):
            copy.copy(item, values)
            continue
        found = True
        matrix, columns = (copy.position[operand] for operand in item.operands)
        weight = copy.append(write.reshape(matrix, (*shapes[item.operands[0]][-2:], 1, 1)))
        image = copy.append(write.reshape(columns, (*shapes[item.operands[1]], 1)))
        convolution = copy.append(POINTWISE.moved((image, weight)))
        copy.position[values[0]] = copy.append(write.reshape(convolution, shapes[values[0]]))
    return copy.graph() if found else program


def _is_of_images(program: Graph, item: Node) -> bool:
    left, right = (program.types[operand] for operand in item.operands)
    is_batch = len(right.shape) == 3 and right.shape[0] > 1 and prod(left.shape[:-2]) == 1
    return is_batch and right.dtype.itemsize == 2 and left.dtype is right.dtype
