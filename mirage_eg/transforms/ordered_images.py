"""Images channels last as tensors in the order of their memory, [N, H·W, C]: tiles are chosen as of any row-major tensor."""

from math import prod

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.windows import channels_last
from mirage_eg.transforms.viewed_program import ViewedProgram, is_channels_last


def ordered_images(program: Graph) -> ViewedProgram | None:
    """A program with its images channels last as [N, H·W, C]; None where it has none."""

    def rewrite(copy: GraphCopy, item: Node, value: int) -> int:
        images, channels, *plane = item["shape"]
        if item["strides"] != channels_last(item["shape"]):  # a slice: its planes have gaps
            ordered = node("input", **item.mapping | {"shape": (images, *plane, channels), "strides": None})
            return copy.append(write.transpose(copy.append(ordered), (0, 1 + len(plane), *range(1, 1 + len(plane)))))
        flat = copy.append(node("input", **item.mapping | {"shape": (images, prod(plane), channels), "strides": None}))
        first = copy.append(write.transpose(flat, (0, 2, 1)))
        return copy.append(write.reshape(first, item["shape"]))

    images = {values[0] for item, values in program.numbered() if item.op == "input" and is_channels_last(item)}
    return ViewedProgram(program, with_rewritten(program, images, rewrite)) if images else None
