"""How long products and convolutions of the library take, in times of the matrix units in float16."""

from collections.abc import Sequence
from math import ceil, prod

from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.backends.launches.aligned_rows import ALIGNED_HALVES
from mirage_eg.backends.launches.image_layouts import MANY_IMAGES, is_channels_last_convolution, is_of_each_channel
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Kind, folded_batch
from mirage_eg.ir.shapes import Shape, matmul
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED

UNALIGNED = 2.8
ODD = 7.0
"""How much slower a product in half precision is whose rows fill no multiples of 16 bytes, and one with an odd extent.

On an H200 a product of 16384 × 768 in bfloat16 took 1,829 µs with 50,264 columns, 5,254 with 50,260, 5,141 with 50,258 and
13,448 with 50,257. In float32 it makes no difference.
"""

MOVED, MOVED_ROWS, MOVED_BY_ELEMENTS = 2, 4, 5
"""The bytes that a copy with zeros behind its rows moves, for each byte that is copied: of a weight's whole rows; of rows of
odd lengths that one side alone has aligned; of rows that are unaligned on both sides.

On an H200 the first, of a weight of 77 MB, took 42 µs, and the last, of 608 MB in rows of 197,951 numbers, 722, of which 141
filled them before. On an H100 the second took 98 µs for 77 MB in rows of 50,257 numbers, and 2,027 for 1.6 GB from such rows
with gaps into rows without; on an H200 both together took 1,874, a head of 4,117 µs less Inductor's 2,243."""

DEPTHWISE = 300.0
"""How much slower a convolution of each channel alone is than matrix units, in any type. On an H200 it took 3.5 to 4.1 µs for
windows of 3×3 in 240 channels of 28 × 28, and 15.1 to 16.3 for 7×7 in 96 channels of 56 × 56, in float16."""
DEPTHWISE_OF_MANY = 61.0
"""The same for many images in half precision, channels last, whose operations are the places of a window times the elements of
image and result. Ten of 128 images were predicted at 0.84 to 1.23 of their times on an H200: 3×3 to 7×7, strides of 1 and 2."""
_FILTERS, _CHANNELS = 128, 32  # of a tile of cuDNN's convolutions in half precision: 16 channels take 2.1 to 2.5 times as long
_FILTERS_OF_FLOATS, _CHANNELS_OF_FLOATS = 32, 48  # in float32
_OF_TRANSPOSED, _OF_TRANSPOSED_VOLUMES = (32, 64), (64, 32)  # transposed; of volumes channels last in float32
_TRANSPOSED_VOLUME = 1.7
"""How much longer a transposed convolution of row-major volumes takes.

On an H200 cuDNN reached 14 TFLOP/s for 3 channels in float32, 30 to 38 for 8, 110 for 32 and 210 for 64. Transposed it
reached 120 to 200 of 64 channels in the plane, and in volumes 11, 32 and 82 to 121 of 16, 32 and 64. `compiled_us` of 101
convolutions of KernelBench was off by a factor of 2.8 in the mean without these numbers, and by 1.5 with them.
"""
_CHANNELS_OF_VOLUMES = 16
"""Of a tile of volumes channels last in float32. On an H200 cuDNN reached 230 to 240 TFLOP/s for 32 channels; row-major it took
1.1 to 2.2 times as long."""
_TRANSPOSED_LAST = 0.5
"""How much longer a transposed convolution takes channels last than row-major. On an H200 it reached 245 and 258 TFLOP/s of 64
channels in float32, in problems 19 and 10 of KernelBench's level 2; in volumes with a stride of 2 100 to 127, and 24.5 of 16
channels to 32 in problem 74."""
_CHANNELS_OF_GROUPS, _CHANNELS_OF_ODD_GROUPS = 140.0, 430.0
"""How much slower a convolution of groups is, times the channels of a group. Of 128 images in bfloat16 cuDNN took 181, 96, 38
and 25 µs for 3.7 GFLOP with 4, 8, 16 and 32 channels a group, on an H200; where they are no power of two, 9 to 196 TFLOP/s for
6 to 112 channels, 0.7 to 1.4 of the times that these numbers give."""
_UNALIGNED_CHANNELS = 16.0
"""How much slower cuDNN's convolutions in half precision are on channels of no aligned bytes: the first one of ResNet-50
took 895 µs for 128 images on an H200, at 34 TFLOP/s."""


def is_depthwise(graph: Graph, item: Node) -> bool:
    """Whether an op is a convolution of each channel alone."""
    return item.op in CONVOLUTIONS and item["groups"] > 1 and graph.types[item.operands[1]].shape[1] == 1


def convolution_steps(weight: Shape) -> float:
    """The steps of a library convolution in iterations of a generated kernel: sums over channels and windows in tiles of 64.

    On an H200 cuDNN took 5.8 µs for 3×3 windows of 64 channels, 9 steps, 8.4 for 36 steps and 11.9 for 72, channels last
    (`benchmarks/library_convolutions.py`).
    """
    start = 26 if weight[1] > 1 else 0  # a convolution of each channel alone is no kernel of matrix units
    return (start + ceil(prod(weight[1:]) / 64)) / 2


def library_slowdown(dtype: DType, op: str) -> float:
    """How much slower the library's products are than in float16: in float32 it does not use matrix units, but for
    convolutions, as torch has them by default.

    On an H200 cuDNN's convolutions of 7.4 to 15 GFLOP took 17.9 to 33 µs in float16, and 28 to 60 in float32, channels last;
    those of 13 to 30 GFLOP of 128 images reached 560 to 680 TFLOP/s in bfloat16. Transposed ones reached 88 to 160 in float32.
    """
    if op in CONVOLUTIONS:
        return 1.1 if dtype.itemsize == 2 else 3.0
    if op in TRANSPOSED:
        return 2.0 if dtype.itemsize == 2 else 6.0
    return 1.0 if dtype.itemsize == 2 else 13.4


def library_work(graph: Graph, item: Node, value: int, by_rows: bool = False) -> tuple[int, float]:
    """The operations of a product or a convolution of the library, and how much slower they are than on matrix units.

    `by_rows`: with row-major volumes.
    """
    operations, (image, weight) = flops_of_product(graph, item, value), (graph.types[it] for it in item.operands[:2])
    if is_of_each_channel(graph, item) and image.dtype.itemsize == 2 and image.shape[0] >= MANY_IMAGES:
        elements = prod(image.shape) + prod(graph.types[value].shape)
        return prod(weight.shape[2:]) * elements, DEPTHWISE_OF_MANY
    if is_depthwise(graph, item):
        return operations, DEPTHWISE
    slower = library_slowdown(image.dtype, item.op)
    filters, channels, *window = weight.shape
    is_last = not by_rows and is_channels_last_convolution(graph, item)
    of_volume = is_last and len(window) > 2 and image.dtype.itemsize != 2
    if item.op in TRANSPOSED:
        if is_last:
            slower *= _TRANSPOSED_LAST * _padded_phases(window, item["strides"])
        elif len(window) > 2:
            slower *= _TRANSPOSED_VOLUME
        tile = _OF_TRANSPOSED_VOLUMES if of_volume else _OF_TRANSPOSED
        return operations, slower * _padding(channels, tile[0], filters // item["groups"], tile[1])
    if item.op not in CONVOLUTIONS:
        return operations, slower
    if image.dtype.itemsize != 2:
        return operations, slower * _padding(
            filters, _FILTERS_OF_FLOATS, channels, _CHANNELS_OF_VOLUMES if of_volume else _CHANNELS_OF_FLOATS
        )
    if item["groups"] > 1:
        odd = channels.bit_count() > 1
        return operations, max(slower, (_CHANNELS_OF_ODD_GROUPS if odd else _CHANNELS_OF_GROUPS) / channels)
    slower *= _padding(filters, _FILTERS, channels, _CHANNELS)
    return operations, _UNALIGNED_CHANNELS if channels % ALIGNED_HALVES else slower


def _padded_phases(window: Sequence[int], strides: Sequence[int]) -> float:
    """The work of a transposed convolution's phases, each padded to as many places of the window as the largest, over the work.

    On an H200 images channels last in float32 reached 202 TFLOP/s with a window of 4 × 4 and a stride of 2, and 131 and 151
    with 3 × 3.
    """
    return prod(ceil(extent / stride) * stride / extent for extent, stride in zip(window, strides, strict=True))


def _padding(filters: int, filters_of_tile: int, channels: int, channels_of_tile: int) -> float:
    """The operations of tiles that hold so many filters and channels, over those of the convolution."""
    return ceil(filters / filters_of_tile) * filters_of_tile / filters * max(1.0, channels_of_tile / channels)


def converted_bytes(graph: Graph, item: Node) -> int:
    """The bytes that the copy channels last of the image of a convolution moves, if it reads it first."""
    if item.op not in (*CONVOLUTIONS, *TRANSPOSED):
        return 0
    image = item.operands[0]
    kind, readers = graph.types[image], [graph.nodes[reader] for reader in graph.readers[image]]
    first = next((reader for reader in readers if reader.op in (*CONVOLUTIONS, *TRANSPOSED)), None)
    return 2 * kind.nbytes if image in placement_of(graph).converted and first is item else 0


def repeated_bytes(graph: Graph, item: Node) -> tuple[int, int]:
    """The bytes that torch writes of operands, one for each matrix that it multiplies, and of these operands themselves."""
    if item.kind is not Kind.MATMUL or any(len(graph.types[operand].shape) < 3 for operand in item.operands):
        return 0, 0
    left, right = (graph.types[operand] for operand in item.operands)
    matrices = prod(matmul([left.shape, right.shape], {})[:-2])
    operands = [left] if folded_batch(left.shape, right.shape) is not None else [left, right]
    copied = [(kind.nbytes, prod(kind.shape[:-2])) for kind in operands]
    copied = [(nbytes, count) for nbytes, count in copied if count not in (1, matrices)]
    return sum(nbytes // count * matrices for nbytes, count in copied), sum(nbytes for nbytes, _ in copied)
