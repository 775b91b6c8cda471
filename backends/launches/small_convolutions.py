"""Convolutions of few positions and filters, for which cuDNN has too large tiles: generated kernels compute them."""

from math import prod

from mirage_eg.backends.launches.image_layouts import has_channels_last
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.weights import marked_weights, prepared_values
from mirage_eg.ir.windows import CONV2D, conv_shape

TILE = 32  # filters of a program, and positions
_MOST_RESULTS = 5 << 16
"""On an H200 kernels of such tiles took, with a relu, 3.0 to 5.4 µs for 64 to 512 channels and 25,000 to 200,000 results, where
cuDNN took 5.3 to 11.4, and torch's relu 1.2 more; of 328,000 9.8 and 17.8, but of 800,000 23 and 17."""


def is_small_convolution(graph: Graph, item: Node) -> bool:
    """Whether an op is a convolution of few positions and filters in half precision, of images and filters channels last."""
    if item.op != CONV2D or item["groups"] > 1 or graph.depends_on_sizes:
        return False
    image, weight = item.operands
    x, kind, placement = graph.types[image], graph.types[weight], placement_of(graph)
    filters, channels, *_ = kind.shape
    is_fit = x.dtype.itemsize == 2 and channels % TILE == 0 and filters % TILE == 0
    if not is_fit or prod(conv_shape((x.shape, kind.shape), item.mapping, 2)) > _MOST_RESULTS:
        return False
    laid = {it for it in item.operands if has_channels_last(graph.types[it].shape, placement.strides[it])}
    return laid.union(placement.converted, marked_weights(graph), prepared_values(graph)) >= {*item.operands}
