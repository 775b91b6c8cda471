"""Images and volumes in the order of cuDNN's kernels, channels last: what convolutions read and write in a program.

Convolutions of torch give an image channels last if their filter is so; images and filters in row-major order are converted
before and behind each of them. Filters that are weights are converted once, by `prepare`; other filters and images that are
inputs by one kernel before all others. So are convolutions of each channel alone, and grouped ones of many images; other
grouped ones, concatenations and elementwise ops of torch keep the order of their images. Poolings of few images are in
row-major order: torch's kernel for images channels last has a handful of blocks there.
"""

from collections.abc import Sequence
from math import prod

from mirage_eg.backends.launches.aligned_rows import ALIGNED, ALIGNED_HALVES
from mirage_eg.backends.launches.views import runs_in_memory, strides_behind
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import DERIVED
from mirage_eg.ir.op.moves import MOVES, RESHAPES, VIEWS
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.reached import reached
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import marked_weights, prepared_values
from mirage_eg.ir.windows import (
    AVG_POOLS,
    CONV2D,
    CONVOLUTIONS,
    MAX_POOLS,
    OF_IMAGES,
    TRANSPOSED,
    channels_last,
    has_planes,
    sides,
)

_CONVOLUTIONS = frozenset({*CONVOLUTIONS, *TRANSPOSED})
_POOLINGS, _OF_VOLUMES = (frozenset(pair) for pair in zip(MAX_POOLS, AVG_POOLS, strict=True))
MANY_IMAGES = 8  # from so many on torch pools images channels last in enough blocks
_FEW, _FEW_OF_IMAGES, _FEW_IN_HALF = 4, 8, 16  # channels, for which cuDNN's kernels of matrix units are half empty
_MANY_FILTERS = 64  # for which volumes may have as many channels as images
_LINES, _LINES_IN_HALF = 32, 128  # channels of images of one row, whose transposed convolutions cuDNN computes slowly
_WINDOW, _FEW_OF_WIDE = 3, 32  # cuDNN's transposed convolutions of volumes are slow for wider windows of so few channels
_FEWEST_ELEMENTS = 1 << 20  # of images, whose convolutions take more than some µs
_MOST_ELEMENTS = (1 << 31) - 1  # of an image: offsets within it have 32 bits
_MOST_PHASES = 64
MOST_FACTORS = 64  # of a window of each channel alone: a program keeps all of them
_KEEP_ORDER = {name for name, op in MOVES.items() if op.keeps_order} | {name for name, op in DERIVED.items() if op.keeps_order}


def image_layouts(graph: Graph, declared: frozenset[int]) -> dict[int, Shape]:
    """The values that are channels last, with their strides: images, and what kernels write that is reshaped to images.

    Values with `declared` strides and inputs are not among them, nor results that the caller does not want so.
    """
    results = {value for item in graph.outputs for value in item.operands}
    by_rows = {item.operands[0] for item in graph.nodes if _reads_rows_of_volumes(item)}
    fixed = declared.union(graph.input_values, results - _wanted(graph), by_rows)
    found = {value: channels_last(graph.types[value].shape) for value in _images(graph) - fixed if _has_order(graph, value)}
    for image in [*found]:
        found |= _reshaped_to(graph, image, found[image], fixed)
    for weight in _filters(graph) - fixed:
        strides = channels_last(graph.types[weight].shape)
        if _has_order(graph, weight) and (written := _reshaped_to(graph, weight, strides, fixed)):
            found |= {weight: strides, **written}
    return found


def _filters(graph: Graph) -> set[int]:
    """What the library's convolutions channels last have as filters."""
    convolutions = (item for item in graph.nodes if item.op == CONV2D and item["groups"] == 1)
    return {item.operands[1] for item in convolutions if is_channels_last_convolution(graph, item)}


def ordered_ends(graph: Graph, may: bool = False) -> tuple[frozenset[int], frozenset[int]]:
    """The places of the inputs and of the results that convolutions channels last, and ops that keep their order, read and
    compute: they cost least channels last. `may`: also images that cost the same in either order, those of 1×1 convolutions on
    aligned planes and of programs whose ops keep the order that they get."""
    found = set[int]() if graph.depends_on_sizes else _images(graph, True, may)
    if may and not graph.depends_on_sizes and _keeps_order(graph):
        found = {*range(len(graph.types))}
    images = {it for it in found if len(graph.types[it].shape) == 4 and _has_order(graph, it)}
    results = [item.operands[0] for item in graph.outputs]
    read, written = ((place for place, value in enumerate(its) if value in images) for its in (graph.input_values, results))
    return frozenset(read), frozenset(written)


def _keeps_order(graph: Graph) -> bool:
    """Whether all ops of a program are elementwise or move channels or planes alone."""

    def keeps(item: Node, value: int) -> bool:
        moves = _is_move(item) and _moves_channels_or_planes(graph, item, value)
        return moves or item.kind is Kind.ELEMENTWISE or item.op in _KEEP_ORDER

    return all(keeps(item, values[0]) for item, values in graph.numbered() if item.kind is not Kind.BOUNDARY)


def _is_move(item: Node) -> bool:
    return item.op in VIEWS or item.kind is Kind.REDUCTION or (item.op in OPS and OPS[item.op].indices is not None)


def _reads_rows_of_volumes(item: Node) -> bool:
    """Whether an op is a pooling or a convolution of groups, of volumes: generated kernels read these row-major."""
    return item.op in _OF_VOLUMES or (item.op in _CONVOLUTIONS and item.op not in OF_IMAGES and item["groups"] > 1)


def _is_given_so(item: Node) -> bool:
    return item.get("strides") is not None and item["strides"] == _channels_last(item["shape"])


def _wanted(graph: Graph) -> set[int]:
    """The results that the caller wants channels last, and in no other order."""
    strides: dict[int, set[Shape | None]] = {}
    for item in graph.outputs:
        strides.setdefault(item.operands[0], set()).add(item.get("strides"))
    return {value for value, wanted in strides.items() if wanted == {_channels_last(graph.types[value].shape)}}


def _channels_last(shape: Shape) -> Shape:
    """The strides of a tensor channels last; none of one that is no image."""
    return channels_last(shape) if has_planes(shape) else ()


def _has_order(graph: Graph, value: int) -> bool:
    """Whether an image has several channels and positions."""
    _, channels, *plane = graph.types[value].shape
    return channels > 1 and prod(plane) > 1


def _reshaped_to(graph: Graph, value: int, strides: Shape, fixed: frozenset[int]) -> dict[int, Shape]:
    """What is reshaped to an image, from what a kernel writes on, with its strides; nothing if no kernel writes it."""
    found = strides_behind(graph, value, strides)
    last = next(reversed(found))
    del found[value]
    return found if graph.node_of[last].op == "block" and fixed.isdisjoint(found) else {}


def is_channels_last_convolution(graph: Graph, item: Node) -> bool:
    """Whether a convolution is computed channels last: one on matrix units, or of groups of many images in half precision.

    In eight of KernelBench's problems with transposed convolutions Inductor's code, which is channels last, took 0.5 to 0.9 of
    the time of kernels around row-major ones, on an H200. Where sizes are chosen later only one of matrix units with a filter
    that is a weight.
    """
    if item.op not in _CONVOLUTIONS or graph.types[item.operands[0]].dtype is DType.float64:
        return False
    if is_rare_convolution(graph, item) or (graph.depends_on_sizes and item.op not in OF_IMAGES):
        return False
    if item.op in TRANSPOSED and len({*sides(item.mapping)}) > 1:
        return False  # the result is a part of what the library gives
    if item["groups"] > 1:
        each = is_of_each_channel(graph, item) and not _is_row_major_alone(graph, item)
        return each or is_grouped_of_many(graph, item)
    return not graph.depends_on_sizes or item.operands[1] in marked_weights(graph) | prepared_values(graph)


def is_rare_convolution(graph: Graph, item: Node) -> bool:
    """Whether an op is a convolution for which cuDNN has no good kernel, of large images. A generated kernel computes it from
    images in any order.

    On an H200 cuDNN reached 1 to 20 TFLOP/s in float32 for volumes of few channels, groups, and transposed volumes with large
    windows and few channels. It reached 88 to 160 for others, also transposed with dilated strides. In half precision it is
    slow for volumes of few channels, and for row-major images of few channels alone. Transposed images of one row took 1,760 µs
    in float32 and 1,267 in half precision (KernelBench's problem 74 of level 1), generated 1,210 and 531.
    """
    if item.op not in (*CONVOLUTIONS, *TRANSPOSED) or graph.depends_on_sizes:
        return False
    x, weight = (graph.types[operand] for operand in item.operands)
    if is_of_few_channels(graph, item):
        return True
    channels, is_volume = x.shape[1] // item["groups"], len(x.shape) == 5
    if channels == 1 or prod(x.shape) < _FEWEST_ELEMENTS or prod(x.shape[1:]) > _MOST_ELEMENTS or x.dtype.itemsize == 8:
        return False
    has_many = item.op in CONVOLUTIONS and (x.dtype.itemsize == 2 or weight.shape[0] // item["groups"] >= _MANY_FILTERS)
    of_few = is_volume and channels <= (_FEW_OF_IMAGES if has_many else _FEW)
    is_line = item.op in TRANSPOSED and not is_volume and x.shape[2] == weight.shape[2] == max(item["strides"]) == 1
    is_image = item.op in CONVOLUTIONS and not is_volume and max(item["strides"]) == 1 and prod(weight.shape[2:]) > 1
    if x.dtype.itemsize == 2 or of_few:
        is_known = (is_image and channels <= _FEW_IN_HALF) or (is_line and channels <= _LINES_IN_HALF)
        return of_few or (is_known and item["groups"] == 1 and _is_row_major_alone(graph, item))
    phases = prod(item["strides"]) if item.op in TRANSPOSED else 1
    is_wide = item.op in TRANSPOSED and is_volume and max(weight.shape[2:]) > _WINDOW and channels <= _FEW_OF_WIDE
    is_known = item["groups"] > 1 or is_wide or (is_image and channels <= _FEW_OF_IMAGES) or (is_line and channels <= _LINES)
    return is_known and phases <= _MOST_PHASES


def is_of_few_channels(graph: Graph, item: Node) -> bool:
    """Whether an op is a convolution in half precision of images of few channels, as the first one of a model.

    For 512 images of 224 × 224 in bfloat16 and a step of 2 cuDNN took 3,497 µs on an H200 with windows of 7 × 7 and 948 with
    3 × 3. Generated kernels took 2,058 and 251, with a bias and a relu behind.
    """
    x, weight = (graph.types[operand] for operand in item.operands)
    is_image = item.op == CONV2D and item["groups"] == 1 and x.dtype.itemsize == 2 and prod(weight.shape[2:]) > 1
    is_large = x.shape[0] >= MANY_IMAGES or prod(x.shape) >= _FEWEST_ELEMENTS
    return is_image and is_large and x.shape[1] < ALIGNED_HALVES and prod(x.shape[1:]) <= _MOST_ELEMENTS


def is_of_each_channel(graph: Graph, item: Node) -> bool:
    """Whether an op is a convolution of each channel alone that a generated kernel may compute channels last."""
    if item.op != CONV2D or graph.depends_on_sizes:
        return False
    image, weight = (graph.types[operand] for operand in item.operands)
    is_alone = item["groups"] > weight.shape[1] == 1 and prod(weight.shape[2:]) <= MOST_FACTORS
    return is_alone and image.dtype in (DType.float16, DType.bfloat16, DType.float32)


def filter_strides(graph: Graph, item: Node) -> Shape:
    """The strides in which a weight is prepared for a convolution: channels last, or the places of its window first where each
    channel is alone."""
    shape = graph.types[item.operands[1]].shape
    if not is_of_each_channel(graph, item):
        return channels_last(shape)
    return (1, shape[0], *(shape[0] * step for step in row_major(shape[2:])))


def is_grouped_of_many(graph: Graph, item: Node) -> bool:
    """Whether an op is a convolution of many images in half precision whose groups have a power of two of channels.

    For 128 images in bfloat16 cuDNN took 22 to 200 µs channels last on an H200, and 1.9 to 4.2 times as long row-major, in each
    of 17 cases: 4 to 128 channels a group. In groups of other sizes row-major ones were faster in 13 of 15 cases, by up to 12
    times, and slower by at most 1.2.
    """
    if item.op != CONV2D or graph.depends_on_sizes or item["groups"] == 1:
        return False
    image, weight = (graph.types[operand] for operand in item.operands)
    channels, is_many = weight.shape[1], image.dtype.itemsize == 2 and image.shape[0] >= MANY_IMAGES
    return is_many and channels > 1 and channels.bit_count() == 1


def _is_row_major_alone(graph: Graph, item: Node) -> bool:
    """Whether a convolution reads a row-major input of a program that has no other one but of groups, and no results channels
    last: a generated kernel computes it, and nothing is converted."""
    image = graph.node_of[graph.behind(item.operands[0], RESHAPES)]
    alone = all(it is item or it["groups"] > 1 for it in graph.nodes if it.op == CONV2D)
    return alone and image.op == "input" and not _is_given_so(image) and not _wanted(graph)


def _is_fast_channels_last(graph: Graph, item: Node) -> bool:
    """Whether cuDNN computes a convolution well channels last, whose image may be row-major where it is alone."""
    if item.op != CONV2D or graph.types[item.operands[0]].dtype is DType.float64:
        return False
    return is_of_each_channel(graph, item) or (item["groups"] == 1 and not _is_product_of_rows(graph, item))


def converted_inputs(graph: Graph, strides: Sequence[Shape]) -> tuple[int, ...]:
    """The inputs with other `strides` that convolutions read channels last: images, and filters that are no weights. A filter
    of each channel alone is read as it is."""
    if graph.depends_on_sizes:
        return ()
    convolutions = [item for item in graph.nodes if is_channels_last_convolution(graph, item)]
    operands = (item.operands[: 1 if is_of_each_channel(graph, item) else 2] for item in convolutions)
    read = {value for each in operands for value in each}.intersection(graph.input_values) - marked_weights(graph)
    shapes = {value: graph.types[value].shape for value in sorted(read)}
    return tuple(value for value, shape in shapes.items() if not has_channels_last(shape, strides[value]))


def has_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether an image or a filter has the memory of one channels last."""
    return runs_in_memory(shape, strides) == runs_in_memory(shape, channels_last(shape))


def pools_row_major(graph: Graph, item: Node) -> bool:
    """Whether an op is a pooling of few images."""
    return item.op in _POOLINGS and graph.types[item.operands[0]].shape[0] < MANY_IMAGES


def _is_product_of_rows(graph: Graph, item: Node) -> bool:
    """Whether a convolution is a product of matrices that may as well be row-major: windows are 1×1, and planes are aligned.

    For 128 images of 14 × 14 and 7 × 7 in bfloat16 cuDNN took three times as long row-major on an H200.
    """
    image, weight = (graph.types[operand] for operand in item.operands)
    return prod(weight.shape[2:]) == 1 and prod(image.shape[2:]) * image.dtype.itemsize % ALIGNED == 0


def _moves_channels_or_planes(graph: Graph, item: Node, value: int) -> bool:
    """Whether an op on images moves, cuts or splits channels alone, as a shuffle of them does, or planes alone, as a pooling
    without overlaps does, which reduces them then, and an upsampling by indices."""
    before, after = graph.types[item.operands[0]].shape, graph.types[value].shape
    if min(len(before), len(after)) < 3 or before[0] != after[0]:
        return False
    if item.kind is not Kind.REARRANGEMENT or min(len(before), len(after)) == 3:  # planes may be one dim
        return before[1] == after[1] and item.get("permutation", (0, 1))[1] == 1
    kept, last = item.get("permutation", range(len(after))), len(after) - 1
    of_channels = before[-2:] == after[-2:] and [*kept[-2:]] == [last - 1, last]
    return kept[0] == 0 and (of_channels or (before[1] == after[1] and kept[1] == 1))


def _images(graph: Graph, of_ends: bool = False, may: bool = False) -> set[int]:
    """What convolutions channels last and poolings read and write, what other library ops make of it in the same order, and
    other images of the same planes; `of_ends`: of convolutions whose neighbours decide, those of each channel alone but not 1×1
    ones on aligned planes, which may be products, unless they `may` be channels last."""
    links: dict[int, set[int]] = {}
    convolutions = [
        (item, values)
        for item, values in graph.numbered()
        if (of_ends and _is_fast_channels_last(graph, item))
        or (is_channels_last_convolution(graph, item) and not (of_ends and not may and _is_product_of_rows(graph, item)))
    ]
    images = _wanted(graph).union(value for item, values in convolutions for value in (item.operands[0], values[0]))
    images |= {values[0] for item, values in graph.numbered() if item.op == "input" and _is_given_so(item)}
    planes = {graph.types[value].shape[2:] for value in images}
    for item, values in graph.numbered():
        if of_ends and _is_move(item) and _moves_channels_or_planes(graph, item, values[0]):
            links.setdefault(item.operands[0], set()).update(values)
            links.setdefault(values[0], set()).update(item.operands)
        if convolutions and item.op in _POOLINGS and graph.types[item.operands[0]].shape[0] >= MANY_IMAGES:
            images |= {item.operands[0], values[0]}
        elif item.op in ("block", *RESHAPES):
            own = (value for value in values if graph.types[value].shape[2:] in planes)
            images |= {it for it in own if not any(pools_row_major(graph, graph.nodes[reader]) for reader in graph.readers[it])}
        elif item.op in _CONVOLUTIONS:  # the others: of groups, or not on matrix units
            links.setdefault(item.operands[0], set()).update(values)
        elif item.op in _KEEP_ORDER or item.kind is Kind.ELEMENTWISE:
            rank = len(graph.types[values[0]].shape)
            alike = [value for value in (*item.operands, *values) if len(graph.types[value].shape) == rank]
            for value in alike if has_planes(graph.types[values[0]].shape) else ():
                links.setdefault(value, set()).update(alike)
    return {*reached(images, lambda value: links.get(value, ()))}
