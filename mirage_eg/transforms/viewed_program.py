"""A program on views of its inputs: its µGraphs become µGraphs of the given program by transposes and reshapes."""

from dataclasses import dataclass, replace

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, TensorType
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import has_planes


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
            last = (0, *range(2, len(item["shape"])), 1)
            value = copy.append(write.transpose(place, last)) if is_channels_last(item) else place
            inputs.append(shaped(value, self.given.input_types[place], graph.input_types[place]))
        results = map(shaped, copy.inlined(graph, inputs), graph.output_types, self.given.output_types)
        for value, item in zip([*results], self.given.outputs, strict=True):
            copy.append(replace(item, operands=(value,)))
        return copy.graph()


def is_channels_last(item: Node) -> bool:
    """Whether an input is images in this order of memory, or a slice of such images."""
    shape: Shape = item["shape"]
    strides: Shape | None = item.get("strides")
    if strides is None or not has_planes(shape):
        return False
    images, channels, *plane = strides
    return channels == 1 and images >= plane[0] and plane == sorted(plane, reverse=True) and plane[-1] >= shape[1]
