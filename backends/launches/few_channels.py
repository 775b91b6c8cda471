"""Convolutions of images of few channels, as products of windows and filters: torch's library has none that is fast.

On an H200 the first convolution of ResNet-50, of 3 channels, took 904 µs for 128 images in bfloat16, as long as ten later ones;
with zeros up to 8 channels 881. A generated kernel copies windows into the rows of a matrix, with zeros up to a multiple of 8.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.launches.aligned_rows import ALIGNED_HALVES
from mirage_eg.backends.launches.image_layouts import MANY_IMAGES, is_channels_last_convolution
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import PAD
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.weights import marked_weights, prepared_values
from mirage_eg.ir.windows import CONV2D

_MOST = 1 << 31  # elements of the matrix


@dataclass(frozen=True, slots=True)
class WindowProduct:
    """A convolution as the product of a matrix of windows [rows, columns] and its filters; the `terms` of a window come first
    in a row, behind them are zeros."""

    item: Node
    rows: int
    terms: int
    columns: int


@once_per_graph
def window_products(graph: Graph) -> Mapping[int, WindowProduct]:
    """The convolutions of few channels of many images, by their results; none of those that share an operand with others."""
    if graph.depends_on_sizes:
        return {}
    convolutions = [(item, values[0]) for item, values in graph.numbered() if item.op == CONV2D]
    found = {value: it for item, value in convolutions if (it := _window_product(graph, item, value)) is not None}
    while True:
        others = {operand for item, value in convolutions if value not in found for operand in item.operands}
        left = {value: it for value, it in found.items() if others.isdisjoint(it.item.operands)}
        if len(left) == len(found):
            return found
        found = left


def window_operands(graph: Graph) -> frozenset[int]:
    """The images and filters of these products."""
    return frozenset(operand for it in window_products(graph).values() for operand in it.item.operands)


def _window_product(graph: Graph, item: Node, value: int) -> WindowProduct | None:
    image, weight = item.operands
    (images, channels, *_), (_, _, *window) = (graph.types[operand].shape for operand in item.operands)
    is_few = channels < ALIGNED_HALVES and item["groups"] == 1 and images >= MANY_IMAGES and prod(window) > 1
    if not is_few or graph.types[image].dtype.itemsize != 2 or not is_channels_last_convolution(graph, item):
        return None
    fixed = marked_weights(graph) | prepared_values(graph)
    is_written = image not in fixed and _is_written(graph, image) and (weight in fixed or _is_written(graph, weight))
    rows, terms = images * prod(graph.types[value].shape[2:]), channels * prod(window)
    columns = -(-terms // ALIGNED_HALVES) * ALIGNED_HALVES
    return WindowProduct(item, rows, terms, columns) if is_written and rows * columns < _MOST else None


def _is_written(graph: Graph, value: int) -> bool:
    """Whether a value is the caller's, or in memory of its own when it is computed."""
    maker = graph.node_of[value]
    return maker.op in ("input", "block", PAD.name) or maker.kind is Kind.ELEMENTWISE
