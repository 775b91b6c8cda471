"""How long products and convolutions of the library take, in times of the matrix units in float16."""

from math import ceil, prod

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONVOLUTIONS

UNALIGNED = 2.8
ODD = 7.0
"""How much slower a product in half precision is whose rows fill no multiples of 16 bytes, and one with an odd extent.

On an H200 a product of 16384 × 768 in bfloat16 took 1,829 µs with 50,264 columns, 5,254 with 50,260, 5,141 with 50,258 and
13,448 with 50,257. In float32 it makes no difference.
"""

MOVED, MOVED_BY_ELEMENTS = 3, 6
"""The traffic of a copy with zeros behind its rows, in bytes of what is copied: torch fills it, then reads and writes. On an
H200 copies of rows of 197,951 numbers, which are unaligned, took 722 µs for 608 MB."""

DEPTHWISE = 300.0
"""How much slower a convolution of each channel alone is than matrix units, in any type. On an H200 it took 3.5 to 4.1 µs for
windows of 3×3 in 240 channels of 28 × 28, and 15.1 to 16.3 for 7×7 in 96 channels of 56 × 56, in float16."""


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


def library_slowdown(dtype: DType, is_convolution: bool) -> float:
    """How much slower the library's products are than in float16: in float32 it does not use matrix units, but for
    convolutions, as torch has them by default.

    On an H200 cuDNN's convolutions of 7.4 to 15 GFLOP took 17.9 to 33 µs in float16, and 28 to 60 in float32, channels last.
    """
    if is_convolution:
        return 1.6 if dtype.itemsize == 2 else 3.0
    return 1.0 if dtype.itemsize == 2 else 13.4
