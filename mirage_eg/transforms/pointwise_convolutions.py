"""Convolutions of 1×1 windows as matrix products, which the block search fuses with the ops around them.

conv(x, w) = reshape(w [O, C] @ reshape(x) [N, C, H·W])        stride 1, no pads, one group
"""

from math import prod

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONVOLUTIONS


def with_pointwise_products(program: Graph) -> Graph:
    """The program with products in the place of 1×1 convolutions; `program` itself where it has none."""
    shapes = [kind.shape for kind in program.types]
    if not any(_is_pointwise(item, shapes[item.operands[1]]) for item in program.nodes if item.op in CONVOLUTIONS):
        return program
    copy = GraphCopy(program)
    for item, values in copy:
        if item.op not in CONVOLUTIONS or not _is_pointwise(item, shapes[item.operands[1]]):
            copy.copy(item, values)
            continue
        x, weight = (copy.position[operand] for operand in item.operands)
        images, channels, *extents = shapes[item.operands[0]]
        lead = (images,) if images > 1 else ()
        columns = copy.append(node("reshape", x, shape=(*lead, channels, prod(extents))))
        matrix = copy.append(node("reshape", weight, shape=shapes[item.operands[1]][:2]))
        product = copy.append(node("matmul", matrix, columns))
        copy.position[values[0]] = copy.append(node("reshape", product, shape=shapes[values[0]]))
    return copy.graph()


def _is_pointwise(item: Node, weight: Shape) -> bool:
    return {*weight[2:], *item["strides"], item["groups"]} == {1} and not any(item["pads"])
