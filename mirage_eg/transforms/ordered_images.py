"""Images channels last as tensors in the order of their memory, [N, H·W, C]: tiles are chosen as of any row-major tensor.

A µGraph of the program with such inputs becomes one of the given program by transposes and reshapes, which are views.
"""

from dataclasses import dataclass, replace
from math import prod

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.ir.windows import channels_last


@dataclass(frozen=True, slots=True)
class ViewedProgram:
    """A program, and the same one on views of its inputs: images in the order of their memory, or other shapes."""

    given: Graph
    program: Graph

    def joined(self, graph: Graph) -> Graph:
        """A µGraph of the given program, from one of `program`."""
        copy, inputs = GraphCopy(self.given), list[int]()

        def shaped(value: int, have: TensorType, want: TensorType) -> int:
            return value if have.shape == want.shape else copy.append(write.reshape(value, want.shape))

        for item in self.given.inputs:
            copy.append(item)
        for place, item in enumerate(self.given.inputs):
            value = copy.append(write.transpose(place, (0, 2, 3, 1))) if _is_channels_last(item) else place
            inputs.append(shaped(value, self.given.input_types[place], graph.input_types[place]))
        results = map(shaped, copy.inlined(graph, inputs), graph.output_types, self.given.output_types)
        for value, item in zip([*results], self.given.outputs, strict=True):
            copy.append(replace(item, operands=(value,)))
        return copy.graph()


def ordered_images(program: Graph) -> ViewedProgram | None:
    """A program with its images channels last as [N, H·W, C]; None where it has none."""

    def rewrite(copy: GraphCopy, item: Node, value: int) -> int:
        images, channels, *plane = item["shape"]
        flat = copy.append(node("input", **item.mapping | {"shape": (images, prod(plane), channels), "strides": None}))
        first = copy.append(write.transpose(flat, (0, 2, 1)))
        return copy.append(write.reshape(first, item["shape"]))

    images = {values[0] for item, values in program.numbered() if item.op == "input" and _is_channels_last(item)}
    return ViewedProgram(program, with_rewritten(program, images, rewrite)) if images else None


def _is_channels_last(item: Node) -> bool:
    return len(item["shape"]) == 4 and item.get("strides") == channels_last(item["shape"])
