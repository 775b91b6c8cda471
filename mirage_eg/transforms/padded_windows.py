"""Zeros around an image that a convolution of each channel reads become pads of the convolution.

conv(pad(x), w, pads p) = conv(x, w, pads p + q)     pad adds q zeros around the plane of an image

Its generated kernel reads nothing there, where torch copies the image. The library has the same pads on both sides: it would
copy the image, too, so that other convolutions stay. Nothing here is trusted: candidates are verified against the program as
it was written.
"""

from operator import add

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.windows import CONVOLUTIONS


def with_pads_of_windows(program: Graph) -> Graph:
    """The program whose convolutions of each channel read images without zeros around them; itself where none has such."""

    def convolved(copy: GraphCopy, item: Node, value: int) -> int:
        padded, weight = program.node_of[item.operands[0]], copy.position[item.operands[1]]
        pads = map(add, item["pads"], (*padded["before"][2:], *padded["after"][2:]))
        return copy.append(node(item.op, copy.position[padded.operands[0]], weight, **item.mapping | {"pads": tuple(pads)}))

    return with_rewritten(program, {values[0] for item, values in program.numbered() if _is_padded(program, item)}, convolved)


def _is_padded(program: Graph, item: Node) -> bool:
    if item.op not in CONVOLUTIONS or not item["groups"] > program.types[item.operands[1]].shape[1] == 1:
        return False
    padded = program.node_of[item.operands[0]]
    return padded.op == "pad" and not (padded["value"] or any((*padded["before"][:2], *padded["after"][:2])))
