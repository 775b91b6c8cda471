"""Convolutions of 1×1 windows and of patches as matrix products, which the block search fuses with the ops around them.

Windows of one position:

conv(x, w) = reshape(w [O, C] @ reshape(x) [N, C, H·W])        stride 1, no pads, one group
           = reshape(w [O, C] @ reshape(x[:, :, ::s, ::s]))    stride s, where cuDNN is slow
           = reshape(reshape(x) [N, C] @ wᵀ [C, O])            likewise, where N images have one position each

Large ones in float32 stay convolutions: torch computes these in TF32 by default, on matrix units, and products without.

Patches, which are windows that neither overlap nor leave gaps:

conv(x, w) = patches(x) [N·P, C·K] @ wᵀ [C·K, O]     stride = window, no pads, one group, extents multiples of the window

P counts the windows of an image, K the positions of a window. Patches are a rearrangement of the image: moved data.

The library needs 8 channels in half precision, and images of cameras have three: their convolutions stay only in float32, which
the library computes in TF32, or where there are channels enough.
"""

from collections.abc import Mapping
from itertools import chain
from math import prod

from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.backends.launches.aligned_rows import ALIGNED_HALVES
from mirage_eg.ir import write
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.pointwise_convolution import POINTWISE
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONVOLUTIONS

_SLOW = 64  # channels of images of which cuDNN skips positions without matrix units
_LARGE = 1 << 28  # operations, above which a product in float32 takes longer than TF32, and a kernel for what follows


def with_pointwise_products(program: Graph) -> Graph:
    """The program with products in the place of 1×1 convolutions; `program` itself where it has none."""
    shapes = [kind.shape for kind in program.types]

    def product_of(copy: GraphCopy, item: Node, value: int) -> int:
        x, weight = (copy.position[operand] for operand in item.operands)
        images, channels, *_ = shapes[item.operands[0]]
        for dim, step in enumerate(item["strides"], 2):
            if step > 1:
                x = copy.append(write.sliced(x, dim, 1 + step * (shapes[value][dim] - 1), step))
        extents = shapes[value][2:]
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
    is_product = {*weight.shape[2:], item["groups"]} == {1} and not any(item["pads"])
    if {*item["strides"]} != {1} and not _is_slow(weight):
        return False
    return is_product and (weight.dtype is not DType.float32 or flops_of_product(program, item, values[0]) < _LARGE)


def _is_slow(weight: TensorType) -> bool:
    """Whether cuDNN computes a strided convolution by these filters without matrix units: those of 64 channels.

    For 512 images of 64 × 56 × 56 in bfloat16 and 128 filters it took 534 µs on an H200, a copy of the positions and a product
    108; for 64 filters 470 and 93. With 256 filters, or with 32, 48, 96 and 128 channels, the strided one was faster.
    """
    filters, channels, *_ = weight.shape
    return weight.dtype.itemsize == 2 and channels == _SLOW and filters <= 2 * _SLOW


def with_convolutions(program: Graph) -> Graph:
    """The program with 1×1 convolutions in the place of products of a matrix and a batch of matrices; itself if it has none.

    The library computes these channels last as one product, and a batch of products of few columns slowly. Elementwise ops
    behind them are ops on images, too: the library's kernels of convolutions have some.
    """
    if not any(_is_of_images(program, item) for item in program.nodes):
        return program
    copy, images = GraphCopy(program), dict[int, int]()  # the images, with one dim for all positions and one of extent 1
    for item, values in copy:
        image = _image(program, copy, images, item, *values) if len(values) == 1 else None
        if image is None:
            copy.copy(item, values)
        else:
            [value] = values
            images[value] = image
            copy.position[value] = copy.append(write.reshape(image, program.types[value].shape))
    return without_dead_code(copy.graph())


def _image(program: Graph, copy: GraphCopy, images: Mapping[int, int], item: Node, value: int) -> int | None:
    """The position of an image that has the elements of a value: a convolution, or an op behind one."""
    shape = program.types[value].shape
    if _is_of_images(program, item):
        matrix, columns = item.operands
        weight = copy.append(write.reshape(copy.position[matrix], (*program.types[matrix].shape[-2:], 1, 1)))
        image = copy.append(write.reshape(copy.position[columns], (*program.types[columns].shape, 1)))
        return copy.append(POINTWISE.moved((image, weight)))
    if images.keys().isdisjoint(item.operands) or len(shape) < 3 or program.depends_on_sizes:
        return None
    if item.op in RESHAPES:
        [source] = item.operands
        return images[source] if shape[:2] == program.types[source].shape[:2] else None
    shapes = [_image_shape(program.types[operand].shape, shape) for operand in item.operands]
    if item.kind is not Kind.ELEMENTWISE or None in shapes:
        return None
    operands = (
        images[operand] if operand in images else copy.append(write.reshape(copy.position[operand], wanted))
        for operand, wanted in zip(item.operands, shapes, strict=True)
        if wanted is not None
    )
    return copy.append(node(item.op, *operands, **item.mapping))


def _image_shape(shape: Shape, like: Shape) -> Shape | None:
    """The shape of an operand of an op on images of another shape; None where it differs along rows or columns."""
    of_plane = len(like) - 2
    if shape == like:
        return (*shape[:2], prod(shape[2:]), 1)
    return None if any(extent > 1 for extent in shape[-of_plane:]) else (*shape[:-of_plane], *(1,) * min(2, len(shape)))


def _is_of_images(program: Graph, item: Node) -> bool:
    if item.kind is not Kind.MATMUL:
        return False
    left, right = (program.types[operand] for operand in item.operands)
    is_batch = len(right.shape) == 3 and right.shape[0] > 1 and prod(left.shape[:-2]) == 1
    return is_batch and right.dtype.itemsize == 2 and left.dtype is right.dtype


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
