"""Views of views that the library reads: the last of them is one call on the memory that all show, and the others are not made.

A call of a view takes the host longer than a further kernel: queries, keys and values of one product are ten of them. What is
reshaped behind a transpose is laid out by one generated copy of the memory that the views show, in the order in which it is
read: 93 MB of images channels last whose channels are shuffled took 53 µs on an H200 so, and 304 by torch in row-major order
(torch 2.11, Triton 3.6).
"""

from dataclasses import dataclass

from mirage_eg.backends.launches.aligned_rows import unaligned_products
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.launches.views import View, reshaped_strides, shown_at
from mirage_eg.ir.biased_product import products_of_matrices
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import RESHAPES, VIEWS
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A value that is copied from a view: the shape and the memory of the view, and the strides of the value in this shape."""

    shape: Shape
    view: View
    strides: Shape


@dataclass(frozen=True, slots=True)
class MergedViews:
    """The views of other views with the memory that they show, the values that are copied from views, and the views that
    no call reads then."""

    views: dict[int, View]
    laid: dict[int, LaidOut]
    unread: frozenset[int]


@once_per_graph
def merged_views(graph: Graph) -> MergedViews:
    """Only memory with known strides counts: inputs, what generated kernels write, and products of matrices."""
    launches, placement = launches_of(graph), placement_of(graph)
    apart = {*placement.views, *placement.joined, *placement.gaps}
    elsewhere = {*apart, *placement.images}
    elsewhere.update(value for value, it in unaligned_products(graph).items() if it.is_padded)
    made_of = [it.results for kind in (LaunchKind.BLOCK, LaunchKind.PRODUCT) for it in launches.of_kind(kind)]
    fixed = {*graph.input_values, *products_of_matrices(graph)}.union(*made_of) - elsewhere
    known = {value: View(value, placement.strides[value]) for value in fixed if not graph.depends_on_sizes}
    views, merged, laid = set[int](), dict[int, View](), dict[int, LaidOut]()
    for launch in launches.launches:
        item, values = graph.numbered()[launch.nodes[0]]
        if launch.kind not in (LaunchKind.LIBRARY, LaunchKind.VIEW) or item.op not in VIEWS:
            continue
        [value], source = values, item.operands[0]
        if value not in apart and item.op in RESHAPES and source in known:
            shape, wanted = graph.types[source].shape, graph.types[value].shape
            split = reshaped_strides(wanted, placement.strides[value], shape)
            if split is not None and reshaped_strides(shape, known[source].strides, wanted) is None:
                laid[value] = LaidOut(shape, known[source], split)
        if value in elsewhere:
            continue
        views.add(value)
        shown = shown_at(item, graph.types[source].shape, known[source].strides) if source in known else None
        if shown is not None:
            known[value] = View(known[source].base, shown[0], known[source].offset + shown[1])
            if source in views:
                merged[value] = known[value]
    made = {graph.makers[value] for value in (*merged, *laid, *placement.views)}
    needed = {operand for item in graph.outputs for operand in item.operands}
    needed |= {each for view in placement.views.values() for each in view.read}
    needed |= {operand for launch in launches.launches if made.isdisjoint(launch.nodes) for operand in launch.operands}
    return MergedViews(merged, laid, frozenset(views - needed))
