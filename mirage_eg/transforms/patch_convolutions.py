"""Convolutions of windows that neither overlap nor leave gaps, as products of patches and filters.

conv(x, w) = patches(x) [N·P, C·K] @ wᵀ [C·K, O]     stride = window, no pads, one group, extents multiples of the window

P counts the windows of an image, K the positions of a window. Patches are a rearrangement of the image: moved data.

The library needs 8 channels in half precision, and images of cameras have three: their convolutions stay only in float32, which
the library computes in TF32, or where there are channels enough.
"""

from itertools import chain
from math import prod

from mirage_eg.backends.launches.aligned_rows import ALIGNED_HALVES
from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node
from mirage_eg.ir.windows import CONVOLUTIONS


def with_patch_products(program: Graph) -> Graph:
    """The program with products in the place of convolutions of patches; `program` itself where it has none."""
    shapes = [kind.shape for kind in program.types]

    def product_of(copy: GraphCopy, item: Node, value: int) -> int:
        x, weight = (copy.position[operand] for operand in item.operands)
        filters, channels, *window = shapes[item.operands[1]]
        images, _, *plane = shapes[value]
        dims, terms = range(len(window)), channels * prod(window)
        split = copy.append(write.reshape(x, (images, channels, *chain(*zip(plane, window, strict=True)))))
        order = (0, *(2 + 2 * dim for dim in dims), 1, *(3 + 2 * dim for dim in dims))
        patches = copy.append(write.reshape(copy.append(write.transpose(split, order)), (images * prod(plane), terms)))
        matrix = copy.append(write.transpose(copy.append(write.reshape(weight, (filters, terms))), (1, 0)))
        product = copy.append(write.matmul(patches, matrix))
        rows = copy.append(write.reshape(product, (images, prod(plane), filters)))
        return copy.append(write.reshape(copy.append(write.transpose(rows, (0, 2, 1))), shapes[value]))

    of_patches = {values[0] for item, values in program.numbered() if _is_of_patches(program, item)}
    return with_rewritten(program, of_patches, product_of)


def _is_of_patches(program: Graph, item: Node) -> bool:
    if item.op not in CONVOLUTIONS or item["groups"] > 1 or any(item["pads"]):
        return False
    image, weight = (program.types[operand] for operand in item.operands)
    window = weight.shape[2:]
    whole = all(extent % size == 0 for extent, size in zip(image.shape[2:], window, strict=True))
    tiles = whole and prod(window) > 1 and item["strides"] == window and {*item["dilations"]} == {1}
    return tiles and weight.dtype.itemsize == 2 and weight.shape[1] % ALIGNED_HALVES > 0
