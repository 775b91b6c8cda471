"""Images of few channels that convolutions read, and their filters, with zeros up to 8 channels: torch's library has fast
convolutions of multiples of 8 alone in half precision.

On an H200 the first convolution of ResNet-50, of 3 channels, took 895 µs for 128 images, as long as ten later ones. The copy of
an image channels last has the zeros, and products with them are none.
"""

from collections.abc import Mapping

from mirage_eg.backends.launches.image_layouts import is_channels_last_convolution
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.weights import marked_weights, prepared_values
from mirage_eg.ir.windows import CONV2D

CHANNELS = 8


@once_per_graph
def filled_values(graph: Graph) -> Mapping[int, int]:
    """The images and filters whose copies have zeros behind their channels, with the channels of the copies."""
    convolutions = [item for item in graph.nodes if item.op == CONV2D]
    found = [item for item in convolutions if _has_few_channels(graph, item)]
    while others := {value for item in convolutions if item not in found for value in item.operands}:
        left = [item for item in found if others.isdisjoint(item.operands)]
        if len(left) == len(found):
            break
        found = left
    return dict.fromkeys((value for item in found for value in item.operands), CHANNELS)


def _has_few_channels(graph: Graph, item: Node) -> bool:
    image, weight = item.operands
    is_few = graph.types[image].dtype.itemsize == 2 and graph.types[image].shape[1] < CHANNELS and item["groups"] == 1
    fixed = marked_weights(graph) | prepared_values(graph)
    copied = image not in fixed and _is_written(graph, image) and (weight in fixed or _is_written(graph, weight))
    return is_few and copied and not graph.depends_on_sizes and is_channels_last_convolution(graph, item)


def _is_written(graph: Graph, value: int) -> bool:
    """Whether a value is the caller's, or in memory of its own when it is computed."""
    maker = graph.node_of[value]
    return maker.op in ("input", "block", "pad") or maker.kind is Kind.ELEMENTWISE
