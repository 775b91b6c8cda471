"""Predicted times of kernels of large products on an H200 are near those measured there (Triton 3.6, warm caches)."""

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph


def layer(sizes: tuple[int, int, int], tile: tuple[int, int, int], ends: str, dtype: str = "bfloat16") -> Graph:
    """x · wᵀ + b, then what its name says; sizes and tiles are rows, terms and columns."""
    (rows, terms, columns), (high, deep, wide) = sizes, tile
    graph, block = new_kernel_graph(), new_threadblock_graph((rows // high, columns // wide), forloop_range=terms // deep)
    x, w = graph.new_input((rows, terms), dtype, "x"), graph.new_input((columns, terms), dtype, "w")
    given = [x, w, graph.new_input((columns,), dtype, "b")]
    left, right = block.new_input(x, (0, -1), 1), block.new_input(w, (-1, 0), 1)
    bias = block.new_input(given[2], (-1, 0))
    total = block.add(block.forloop_accum(block.matmul(left, block.transpose(right, (1, 0)))), bias)
    if "erf" in ends:
        total = block.mul(block.scale(total, 0.5), block.shift(block.erf(block.scale(total, 0.7071067811865476)), 1))
    if "gelu" in ends:
        total = block.gelu(total)
    if "residual" in ends:
        given.append(graph.new_input((rows, columns), dtype, "r"))
        total = block.add(total, block.new_input(given[3], (0, 1)))
    block.new_output(total, (0, 1))
    graph.mark_output(graph.customized(given, block)[0])
    return graph.graph()


def behind_gelu() -> Graph:
    """gelu(x) · wᵀ, whose blocks of 256 columns each compute the gelu in their loop."""
    graph, block = new_kernel_graph(), new_threadblock_graph((4, 64), forloop_range=128)
    x, w = graph.new_input((8192, 4096), "bfloat16", "x"), graph.new_input((1024, 4096), "bfloat16", "w")
    left, right = block.new_input(x, (-1, 0), 1), block.new_input(w, (0, -1), 1)
    block.new_output(block.forloop_accum(block.matmul(block.gelu(left), block.transpose(right, (1, 0)))), (1, 0))
    graph.mark_output(graph.customized([x, w], block)[0])
    return graph.graph()


WIDE, DEEP, ATTENTION, SQUARE = (16384, 768, 3072), (16384, 3072, 768), (25344, 768, 2304), (1024, 8192, 8192)
MEASURED = {
    "an error function": (layer(WIDE, (128, 64, 256), "erf"), 205),
    "an error function, high tiles": (layer(WIDE, (256, 64, 128), "erf"), 220),
    "an error function, two buffers": (layer(WIDE, (128, 128, 256), "erf"), 242),
    "an error function, flat tiles": (layer(WIDE, (128, 32, 256), "erf"), 235),
    "an error function, small tiles": (layer(WIDE, (128, 128, 128), "erf"), 335),
    "gelu": (layer(WIDE, (128, 64, 256), "gelu"), 160),
    "gelu, high tiles": (layer(WIDE, (256, 64, 128), "gelu"), 168),
    "a gelu in the loop": (behind_gelu(), 234),
    "long sums": (layer(DEEP, (128, 64, 256), ""), 107),
    "a residual": (layer(DEEP, (128, 64, 256), "residual"), 114),
    "a residual, wide": (layer(WIDE, (128, 64, 256), "residual"), 165),
    "a bias": (layer(ATTENTION, (128, 64, 256), ""), 155),
    "long sums in float16": (layer(SQUARE, (256, 64, 128), "erf", "float16"), 210),
    "a residual, two buffers": (layer(DEEP, (128, 128, 256), "residual"), 158),
    "a residual, small tiles": (layer(DEEP, (128, 128, 128), "residual"), 135),
}


@pytest.mark.parametrize("name", MEASURED)
def test_predicted_times_are_near_measured_ones(name: str) -> None:
    graph, us = MEASURED[name]
    assert 0.7 < predict_us(graph, DEVICES["H200"]) / us < 1.3
