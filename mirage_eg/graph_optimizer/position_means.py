"""Means over all positions of a convolution: the product of its filters with means of the elements that each tap meets.

(1/P) Σₚ Σ_{c, i} x[c, s·p + d·i − b] · w[o, c, i] = Σ_{c, i} X[c, i] · w[o, c, i], where X[c, i] is a mean over a slice of x in
steps of s; of a transposed convolution over a slice of neighbours. One dim after the other, so that x is read k / s times.
"""

from collections.abc import Iterator
from fractions import Fraction
from math import prod

from mirage_eg.graph_optimizer.program_terms import ProgramTerms
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED


def position_mean_rules(terms: ProgramTerms) -> Iterator[str]:
    """A law of `rules/graph` for each convolution of one group of a program with means, at its shapes."""
    program, seen = terms.program, set[tuple[object, ...]]()
    if not any(item.op == "mean" for item in program.nodes):
        return
    for item, values in program.numbered():
        if item.op not in (*CONVOLUTIONS, *TRANSPOSED) or item["groups"] > 1:
            continue
        x, w = (program.types[operand] for operand in item.operands)
        key = (item.op, item.attributes, x, w)
        graph = None if key in seen else position_mean(item, x, w, program.types[values[0]].shape)
        seen.add(key)
        if graph is not None:
            match = f"(positions e p {len(item['strides'])})"
            yield terms.convolution_law(item, match, graph, f"mean over the positions of convolution {len(seen)}")


def position_mean(item: Node, image: TensorType, weight: TensorType, result: Shape) -> Graph | None:
    """The mean over all positions of a convolution with one group, as a program of image and filter; None where a tap meets
    no element of the image."""
    graph, transposed, dims = KernelGraph(), item.op in TRANSPOSED, len(item["strides"])
    x, w = (graph.new_input(kind.shape, kind.dtype) for kind in (image, weight))
    for dim in range(dims):
        slices = [_met(item, dim, tap, image.shape[2 + dim], result[2 + dim]) for tap in range(weight.shape[2 + dim])]
        if not all(slices):
            return None
        means = {places: _mean(graph, x, 2 + dim, places, result[2 + dim]) for places in dict.fromkeys(slices)}
        x = graph.concat([means[places] for places in slices], 2 + dim) if len(slices) > 1 else means[slices[0]]
    terms, filters = prod(x.shape[1:]), weight.shape[1 if transposed else 0]
    if transposed:
        matrix = graph.reshape(graph.transpose(w, (0, *range(2, 2 + dims), 1)), (terms, filters))
    else:
        matrix = graph.transpose(graph.reshape(w, (filters, terms)), (1, 0))
    product = graph.reshape(x, (x.shape[0], terms)) @ matrix
    graph.mark_output(graph.reshape(product, (*product.shape, *[1] * dims)))
    return graph.graph()


def _met(item: Node, dim: int, tap: int, extent: int, count: int) -> range:
    """The elements along a dim that one tap multiplies, at any of `count` positions of the result."""
    stride, shift = item["strides"][dim], item["dilations"][dim] * tap - item["pads"][dim]
    if item.op in TRANSPOSED:  # element q is at position stride · q + shift
        return range(max(0, -(shift // stride)), min(extent, (count - 1 - shift) // stride + 1))
    return range(stride * max(0, -(shift // stride)) + shift, min(extent, stride * (count - 1) + shift + 1), stride)


def _mean(graph: KernelGraph, x: Tensor, dim: int, places: range, count: int) -> Tensor:
    """The sum over some elements of a dim, by the number of positions: sums of halves may leave their range."""
    if len(places) < x.shape[dim]:
        x = graph.slice(x, dim, places[0], places[-1] + 1, places.step)
    mean = graph.mean(x, dim) if len(places) > 1 else x
    return mean if len(places) == count else mean * Fraction(len(places), count)
