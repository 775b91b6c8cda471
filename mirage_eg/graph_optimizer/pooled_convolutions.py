"""Average pools of convolutions: a convolution whose filters are averaged, and whose strides are those of the pool.

(1/m) Σ_{r < m} Σᵢ x[m·p + r + d·i] w[i] = Σⱼ x[m·p + j] v[j]        v[j] = (1/m) Σ_r w[j − r], for stride 1 and dilation 1

A transposed convolution whose strides are the width m of the pool has stride 1 and filters that are averaged in steps of m:

(1/m) Σ_{r < m} y[m·p + r] = Σⱼ x[p + u − j] v[j]        v[j] = (1/m) Σ_{r < m} w[m·j + r + b − m·u], u = ⌈b / m⌉, b pads before

One dim after the other: `rules/graph/50_collapses.egg` says which terms are means over windows of m along a dim. A side that
windows do not fill is cut before: the convolution of an image with fewer pads or elements at the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirage_eg.graph_optimizer.program_terms import ProgramTerms
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED, sides


def pooled_rules(terms: ProgramTerms) -> Iterator[str]:
    """Laws of `rules/graph` for each convolution of a program, each of its dims, and each width of a mean of the program."""
    program = terms.program
    read = ((item["dim"], program.node_of[item.operands[0]]) for item in program.nodes if item.op == "mean")
    writer = _Writer(terms, sorted({maker["shape"][dim] for dim, maker in read if maker.op in RESHAPES} - {1}))
    for item, values in program.numbered() if writer.widths else ():
        if item.op in (*CONVOLUTIONS, *TRANSPOSED):
            x, w = (program.types[operand] for operand in item.operands)
            yield from writer.rules(item, x, w, program.types[values[0]].shape)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes laws, each once."""

    terms: ProgramTerms
    widths: list[int]
    seen: set[object] = field(default_factory=set)

    def rules(self, item: Node, x: TensorType, w: TensorType, result: Shape) -> Iterator[str]:
        """The laws of a convolution, and those of the convolutions that they make."""
        for dim, (stride, dilation) in enumerate(zip(item["strides"], item["dilations"], strict=True)):
            count, transposed = result[2 + dim], item.op in TRANSPOSED
            for width in self.widths if dilation == 1 else ():
                if width > count or stride != (width if transposed else 1):
                    continue
                graph: Graph | None
                if kept := count % width:
                    match, graph = f"(= e (Slice {2 + dim} 0 {count - kept} p))", _cut(item, x, w, dim, kept)
                else:
                    match = f"(pooled e p {2 + dim} {width} r q)"
                    graph = (_pooled_transposed if transposed else _pooled)(item, x, w, dim, width)
                key = (item.op, item.attributes, x, w, match)
                if graph is None or key in self.seen:
                    continue
                self.seen.add(key)
                title = f"average pool of convolution {len(self.seen)}: {match}"
                yield self.terms.convolution_law(item, match, graph, title)
                convolved, value = graph.nodes[-2], len(graph.types) - 1
                self.terms.filtered.update(self.terms.ops.name(it) for it in (item, convolved))
                image, weight = (graph.types[i] for i in graph.node_of[value].operands)
                yield from self.rules(convolved, image, weight, graph.types[value].shape)


def _pooled(item: Node, x: TensorType, w: TensorType, dim: int, width: int) -> Graph:
    """The convolution and its pool by `width` along a dim, of image and filter."""
    graph, dims = KernelGraph(), len(item["strides"])
    image, weight = (graph.new_input(kind.shape, kind.dtype) for kind in (x, w))
    window = tuple(width if place == dim else 1 for place in range(dims))
    average = {"window": window, "strides": (1,) * dims, "pads": tuple(it - 1 for it in window) * 2, "count_include_pad": 1}
    averaged = graph.op(f"avg_pool{dims}d", weight, **average)
    strides = tuple(width if place == dim else stride for place, stride in enumerate(item["strides"]))
    graph.mark_output(graph.op(item.op, image, averaged, **item.mapping | {"strides": strides}))
    return graph.graph()


def _pooled_transposed(item: Node, x: TensorType, w: TensorType, dim: int, width: int) -> Graph | None:
    """As `_pooled` of a transposed convolution with that stride; None where the result needs more than stride 1 gives."""
    graph, dims, (before, after) = KernelGraph(), len(item["strides"]), sides(item.mapping)
    image, weight = (graph.new_input(kind.shape, kind.dtype) for kind in (x, w))
    extent, pad = w.shape[2 + dim], before[dim]
    first = -(-pad // width)
    low = width * first - pad
    count = (extent - 1 + low) // width + 1
    places = (extent + x.shape[2 + dim] * width - width - pad - after[dim] + item["output_pads"][dim]) // width
    left = x.shape[2 + dim] + count - 1 - first - places
    if left < 0:
        return None

    def at_dim(value: int, others: Sequence[int]) -> tuple[int, ...]:
        return tuple(value if place == dim else other for place, other in enumerate(others))

    window, none = at_dim(width, (1,) * dims), (0,) * dims
    pads = (*at_dim(low, none), *at_dim(width * count - extent - low, none))
    averaged = graph.op(f"avg_pool{dims}d", weight, window=window, strides=window, pads=pads, count_include_pad=1)
    changed = {"strides": at_dim(1, item["strides"]), "pads": (*at_dim(first, before), *at_dim(left, after))}
    changed["output_pads"] = at_dim(0, item["output_pads"])
    graph.mark_output(graph.op(item.op, image, averaged, **item.mapping | changed))
    return graph.graph()


def _cut(item: Node, x: TensorType, w: TensorType, dim: int, less: int) -> Graph | None:
    """The convolution without its last positions along a dim, of image and filter; None where they read all of the image."""
    graph, (before, after) = KernelGraph(), sides(item.mapping)
    image, weight = (graph.new_input(kind.shape, kind.dtype) for kind in (x, w))
    if item.op in TRANSPOSED:
        own = item["output_pads"]
        taken = min(own[dim], less)
        added = tuple(more - taken * (place == dim) for place, more in enumerate(own))
        pads = (*before, *(pad + (less - taken) * (place == dim) for place, pad in enumerate(after)))
        graph.mark_output(graph.op(item.op, image, weight, **item.mapping | {"pads": pads, "output_pads": added}))
        return graph.graph()
    taken = min(after[dim], less)
    if less - taken >= x.shape[2 + dim]:
        return None
    if less > taken:
        image = graph.slice(image, 2 + dim, 0, x.shape[2 + dim] - (less - taken))
    pads = (*before, *(pad - taken * (place == dim) for place, pad in enumerate(after)))
    graph.mark_output(graph.op(item.op, image, weight, **item.mapping | {"pads": pads}))
    return graph.graph()
