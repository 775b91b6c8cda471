"""Zeros around an image that a convolution of each channel reads become pads of the convolution.

conv(pad(x), w, pads p) = conv(x, w, pads p + q)     pad adds q zeros around the plane of an image

Its generated kernel reads nothing there, where torch copies the image. Other convolutions stay: those of the library have the
same pads on both sides, and would copy the image, too. Nothing here is trusted: candidates are verified against the program as
it was written.
"""

from operator import add

from mirage_eg.backends.launches.image_layouts import is_of_each_channel
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.moves import PAD


def with_pads_of_windows(program: Graph) -> Graph:
    """The program whose convolutions of each channel read images without zeros around them; itself where none has such."""

    def convolved(copy: GraphCopy, item: Node, value: int) -> int:
        padded, weight = program.node_of[item.operands[0]], copy.position[item.operands[1]]
        pads = map(add, item["pads"], (*padded["before"][2:], *padded["after"][2:]))
        return copy.append(node(item.op, copy.position[padded.operands[0]], weight, **item.mapping | {"pads": tuple(pads)}))

    return with_rewritten(program, {values[0] for item, values in program.numbered() if _is_padded(program, item)}, convolved)


def _is_padded(program: Graph, item: Node) -> bool:
    if not is_of_each_channel(program, item) or (padded := program.node_of[item.operands[0]]).op != PAD.name:
        return False
    return not (padded["value"] or any((*padded["before"][:2], *padded["after"][:2])))
