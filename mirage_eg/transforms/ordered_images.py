"""Images channels last as tensors in the order of their memory, [N, H·W, C]: tiles are chosen as of any row-major tensor.

A µGraph of the program with such inputs becomes one of the given program by transposes and reshapes, which are views.
"""

from dataclasses import dataclass, replace
from math import prod

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import channels_last


@dataclass(frozen=True, slots=True)
class OrderedImages:
    """A program, and the same one with images in the order of their memory."""

    given: Graph
    program: Graph

    def joined(self, graph: Graph) -> Graph:
        """A µGraph of the given program, from one of `program`."""
        copy, inputs = GraphCopy(self.given), list[int]()
        for item in self.given.inputs:
            copy.append(item)
        for place, item in enumerate(self.given.inputs):
            if _is_channels_last(item):
                last = copy.append(write.transpose(place, (0, 2, 3, 1)))
                place = copy.append(write.reshape(last, _in_memory(item["shape"])))
            inputs.append(place)
        for value, item in zip(copy.inlined(graph, inputs), self.given.outputs, strict=True):
            copy.append(replace(item, operands=(value,)))
        return copy.graph()


def ordered_images(program: Graph) -> OrderedImages | None:
    """A program with its images channels last as [N, H·W, C]; None where it has none."""
    if not any(map(_is_channels_last, program.inputs)):
        return None
    copy = GraphCopy(program)
    for item, values in copy:
        if item.op == "input" and _is_channels_last(item):
            images, channels, *plane = item["shape"]
            flat = copy.append(node("input", **item.mapping | {"shape": _in_memory(item["shape"]), "strides": None}))
            first = copy.append(write.transpose(flat, (0, 2, 1)))
            copy.position[values[0]] = copy.append(write.reshape(first, (images, channels, *plane)))
        else:
            copy.copy(item, values)
    return OrderedImages(program, copy.graph())


def _in_memory(shape: Shape) -> Shape:
    images, channels, *plane = shape
    return images, prod(plane), channels


def _is_channels_last(item: Node) -> bool:
    return len(item["shape"]) == 4 and item.get("strides") == channels_last(item["shape"])
