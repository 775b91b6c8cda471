"""Convolutions whose kernel adds a bias for each channel and an image, and takes the relu: relu(conv(x, w) + bias + added).

cuDNN has them as one kernel for images channels last in half precision. All other ops are kernels of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_eg.backends.launches.image_layouts import is_channels_last_convolution
from mirage_eg.backends.launches.small_convolutions import is_small_convolution
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import PACKAGED, SUMS
from mirage_eg.ir.weights import prepared_values
from mirage_eg.ir.windows import CONV2D

_ACTIVATIONS = frozenset(op.name for op in PACKAGED.values() if op.behind_convolution)
_ALIGNED = 8  # channels: cuDNN's fused kernels read 16 bytes at once


@dataclass(frozen=True, slots=True)
class FusedConvolution:
    """The convolution, the values of bias and image that are added to it, and the values of all nodes."""

    convolution: Node
    bias: int | None
    added: int | None
    values: tuple[int, ...]  # the relu's last

    @property
    def read(self) -> tuple[int, ...]:
        return (*self.convolution.operands, *(it for it in (self.bias, self.added) if it is not None))


def fused_convolutions(graph: Graph) -> tuple[FusedConvolution, ...]:
    """The fused convolutions of a kernel graph; where two end in one relu, the one with more ops, or the last."""
    ops = {item.op for item in graph.nodes}
    if CONV2D not in ops or ops.isdisjoint(_ACTIVATIONS) or dims_of(graph):
        return ()
    fixed, found = prepared_values(graph), dict[int, FusedConvolution]()
    for position, (item, values) in enumerate(graph.numbered()):
        if fixed.isdisjoint(values) and _may_be_fused(graph, item, values):
            fused = _fused(graph, position)
            if fused is not None:
                other = found.get(fused.values[-1], fused)
                found[fused.values[-1]] = max(fused, other, key=lambda it: len(it.values))
    return tuple(found.values())


def _may_be_fused(graph: Graph, item: Node, values: range) -> bool:
    if item.op != CONV2D or item["groups"] > 1 or item["pads"][:2] != item["pads"][2:]:
        return False
    if not is_channels_last_convolution(graph, item) or is_small_convolution(graph, item):
        return False
    kinds = [graph.types[value] for value in (*item.operands, *values)]
    return len({kind.dtype for kind in kinds}) == 1 and not any(kind.shape[1] % _ALIGNED for kind in kinds[1:])


def _fused(graph: Graph, position: int) -> FusedConvolution | None:
    """The ops behind a convolution, each the only reader of the one before, up to a relu."""
    item, [value] = graph.numbered()[position]
    kind, nodes = graph.types[value], [position]
    terms: dict[str, int] = {}
    for reader in _only_readers(graph, value):
        op, [result] = graph.numbered()[reader]
        nodes.append(reader)
        if graph.types[result] != kind:
            return None
        if op.op in _ACTIVATIONS:
            made = tuple(graph.numbered()[node][1][0] for node in nodes)
            return FusedConvolution(item, terms.get("bias"), terms.get("added"), made)
        before = graph.numbered()[nodes[-2]][1][0]
        others = [operand for operand in op.operands if operand != before]
        if op.op not in SUMS or len(others) != 1 or graph.types[others[0]].dtype is not kind.dtype:
            return None
        shape, channels = graph.types[others[0]].shape, kind.shape[1]
        role = "added" if shape == kind.shape else "bias"
        if role in terms or (role == "bias" and shape not in ((channels, 1, 1), (1, channels, 1, 1))):
            return None
        terms[role] = others[0]
    return None


def _only_readers(graph: Graph, value: int) -> Iterator[int]:
    while len(graph.readers[value]) == 1:
        [reader] = graph.readers[value]
        if len(graph.numbered()[reader][1]) != 1:
            return
        yield reader
        [value] = graph.numbered()[reader][1]
