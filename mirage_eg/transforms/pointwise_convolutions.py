"""Convolutions of 1×1 windows as matrix products, which the block search fuses with the ops around them.

conv(x, w) = reshape(w [O, C] @ reshape(x) [N, C, H·W])        stride 1, no pads, one group

Large ones in float32 stay convolutions: torch computes these in TF32 by default, on matrix units, and products without.
"""

from math import prod

from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.ir import write
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node
from mirage_eg.ir.windows import CONVOLUTIONS

_LARGE = 1 << 28  # operations, above which a product in float32 takes longer than TF32, and a kernel for what follows


def with_pointwise_products(program: Graph) -> Graph:
    """The program with products in the place of 1×1 convolutions; `program` itself where it has none."""
    shapes = [kind.shape for kind in program.types]
    pointwise = {values[0] for item, values in program.numbered() if _is_pointwise(program, item, values)}
    if not pointwise:
        return program
    copy = GraphCopy(program)
    for item, values in copy:
        if pointwise.isdisjoint(values):
            copy.copy(item, values)
            continue
        x, weight = (copy.position[operand] for operand in item.operands)
        images, channels, *extents = shapes[item.operands[0]]
        lead = (images,) if images > 1 else ()
        columns = copy.append(write.reshape(x, (*lead, channels, prod(extents))))
        matrix = copy.append(write.reshape(weight, shapes[item.operands[1]][:2]))
        product = copy.append(write.matmul(matrix, columns))
        copy.position[values[0]] = copy.append(write.reshape(product, shapes[values[0]]))
    return copy.graph()


def _is_pointwise(program: Graph, item: Node, values: range) -> bool:
    if item.op not in CONVOLUTIONS:
        return False
    weight = program.types[item.operands[1]]
    is_product = {*weight.shape[2:], *item["strides"], item["groups"]} == {1} and not any(item["pads"])
    return is_product and (weight.dtype is not DType.float32 or flops_of_product(program, item, values[0]) < _LARGE)
