"""Factors and shifts of each channel behind a convolution become those of its filters, and one bias.

(conv(x, w) − m) · s + b = conv(x, w · s) + (b − m · s)     a batch norm with its own statistics
(conv(x, w) + b) + (conv(y, v) + c) = (conv(x, w) + (b + c)) + conv(y, v)     the shortcut of a residual block

The library adds a bias and an image, and takes a relu, in the kernel of a convolution. So this is for convolutions in half
precision that end so, and that are large: the filters are computed in each call. Nothing here is trusted: candidates are
verified against the program as it was written.
"""

from collections.abc import Iterable
from math import prod

from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.backends.launches.aligned_rows import ALIGNED_HALVES
from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.elementwise import PRODUCTS, RECTIFIERS, SUMS, TERMS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONV2D

LARGE = 1 << 32  # operations: 6 µs on an H200
(_SUM,), (_PRODUCT,) = SUMS, PRODUCTS
AFFINE = frozenset((*TERMS, *PRODUCTS))


def with_folded_norms(program: Graph) -> Graph:
    """The program with factors of channels in the filters of large convolutions; itself where none has such."""
    large = [value for value in range(len(program.types)) if _is_large(program, value)]
    runs = [run for value in large if (run := _run(program, value))]
    runs_of = {values[-1]: (convolved, values) for convolved, *values in runs}

    def folded(copy: GraphCopy, item: Node, value: int) -> int:
        convolved, values = runs_of[value]
        convolution = program.node_of[convolved]
        factor, shift = factor_and_shift(copy, [program.node_of[step] for step in values])
        assert factor is not None
        image, weight = (copy.position[operand] for operand in convolution.operands)
        shape = program.types[convolution.operands[1]].shape
        by = copy.append(write.reshape(factor, (shape[0], 1, 1, 1)))
        product = copy.append(node(_PRODUCT, channels_behind(copy, weight, shape), by))
        weight = channels_before(copy, product, shape)
        result = copy.append(node(convolution.op, image, weight, **convolution.mapping))
        return result if shift is None else copy.append(node(_SUM, result, shift))

    return _with_one_shift(with_rewritten(program, runs_of.keys(), folded))


def _with_one_shift(program: Graph) -> Graph:
    """The program in which a sum of two shifted convolutions has one shift: the other one would be a kernel of its own."""

    def joined(copy: GraphCopy, item: Node, value: int) -> int:
        (image, by), (other, other_by) = (
            map(copy.position.__getitem__, program.node_of[operand].operands) for operand in item.operands
        )
        shift = copy.append(node(_SUM, by, other_by))
        return copy.append(node(_SUM, copy.append(node(_SUM, image, shift)), other))

    sums = {values[0] for item, values in program.numbered() if item.op == _SUM}
    ends = {it for it in sums if all(_is_shifted(program, operand) for operand in program.node_of[it].operands)}
    return without_dead_code(with_rewritten(program, ends, joined)) if ends else program


def _is_shifted(program: Graph, value: int) -> bool:
    """Whether one op reads a value that is a large convolution with a shift of its channels."""
    item = program.node_of[value]
    if item.op != _SUM or len(program.readers[value]) > 1 or not is_of_channels(program, item.operands[0], item):
        return False
    [convolved, _] = item.operands
    return len(program.readers[convolved]) == 1 and _is_large(program, convolved)


def factor_and_shift(copy: GraphCopy, steps: Iterable[Node]) -> tuple[int | None, int | None]:
    """The positions of what sums, differences and products with a number of each channel multiply by, and add then."""
    factor: int | None = None
    shift: int | None = None
    for step in steps:
        by = copy.position[step.operands[1]]
        if step.op == _PRODUCT:
            factor = by if factor is None else copy.append(node(_PRODUCT, factor, by))
            shift = None if shift is None else copy.append(node(_PRODUCT, shift, by))
        elif shift is not None:
            shift = copy.append(node(step.op, shift, by))
        else:
            shift = by if step.op == _SUM else copy.append(write.scale(by, -1))
    return factor, shift


def channels_behind(copy: GraphCopy, weight: int, shape: Shape) -> int:
    """The filters of a shape as [O, *window, C]: the library reads them so."""
    filters, channels, *window = shape
    ordered = write.transpose(weight, (0, 2, 3, 1)) if channels > 1 < prod(window) else None
    return copy.append(ordered or write.reshape(weight, (filters, *window, channels)))


def channels_before(copy: GraphCopy, weight: int, shape: Shape) -> int:
    """The filters of a shape that are [O, *window, C]."""
    ordered = write.transpose(weight, (0, 3, 1, 2)) if shape[1] > 1 < prod(shape[2:]) else None
    return copy.append(ordered or write.reshape(weight, shape))


def _run(program: Graph, convolved: int) -> list[int]:
    """A convolution and what sums and products with a number of each channel make of it: one product at least, and an end as
    the library's kernel has it."""
    found = [convolved]
    while len(program.readers[found[-1]]) == 1:
        [place] = program.readers[found[-1]]
        item, values = program.numbered()[place]
        if item.op not in AFFINE or not is_of_channels(program, found[-1], item):
            ends = item.op in RECTIFIERS or (item.op == _SUM and _is_residual(program, item, *values))
            return found if ends and any(program.node_of[value].op == _PRODUCT for value in found) else []
        found.extend(values)
    return []


def is_of_channels(program: Graph, value: int, item: Node) -> bool:
    """Whether the second operand of an op on a value has a number for each channel."""
    shape = program.types[item.operands[1]].shape
    return item.operands[0] == value and shape == (program.types[value].shape[1], 1, 1)


def _is_residual(program: Graph, item: Node, value: int) -> bool:
    """Whether a sum is of two images and read by a relu alone."""
    readers = [program.nodes[reader].op for reader in program.readers[value]]
    return (
        len(readers) == 1
        and RECTIFIERS.issuperset(readers)
        and all(program.types[it] == program.types[value] for it in item.operands)
    )


def _is_large(program: Graph, value: int) -> bool:
    if (item := program.node_of[value]).op != CONV2D:
        return False
    weight = program.types[item.operands[1]]
    is_aligned = all(extent % ALIGNED_HALVES == 0 for extent in weight.shape[:2]) and weight.dtype.itemsize == 2
    return is_aligned and item["groups"] == 1 and flops_of_product(program, item, value) >= LARGE


def with_activated_images(program: Graph) -> Graph:
    """The program in which a relu of a reshaped image, of which a convolution is a term, is one of the image.

    The laws may leave a reshape before the relu. Such a relu is no part of the library's kernel.
    """

    def activated(copy: GraphCopy, item: Node, value: int) -> int:
        source = program.node_of[item.operands[0]].operands[0]
        image = copy.append(node(item.op, copy.position[source], **item.mapping))
        return copy.append(write.reshape(image, program.types[value].shape))

    read = {values[0] for item, values in program.numbered() if _reads_image(program, item)}
    return without_dead_code(with_rewritten(program, read, activated)) if read else program


def _reads_image(program: Graph, item: Node) -> bool:
    if item.op not in RECTIFIERS or (reshape := program.node_of[item.operands[0]]).op not in RESHAPES:
        return False
    [value] = reshape.operands
    while (maker := program.node_of[value]).op == _SUM:
        value = maker.operands[0]
    return maker.op == CONV2D and len(program.readers[item.operands[0]]) == len(program.readers[reshape.operands[0]]) == 1
