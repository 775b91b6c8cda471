"""Views of views that the library reads: the last of them is one call on the memory that all show, and the others are not made.

A call of a view takes the host longer than a further kernel: queries, keys and values of one product are ten of them.
"""

from mirage_eg.backends.launches.aligned_rows import unaligned_products
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.launches.views import View, shown_at
from mirage_eg.ir.biased_product import products_of_matrices
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import VIEWS
from mirage_eg.ir.remembered import once_per_graph


@once_per_graph
def merged_views(graph: Graph) -> tuple[dict[int, View], frozenset[int]]:
    """The views of other views with the memory that they show, and the views that no call reads then.

    Only memory with known strides counts: inputs, what generated kernels write, and products of matrices.
    """
    launches, placement = launches_of(graph), placement_of(graph)
    elsewhere = {*placement.views, *placement.joined, *placement.images, *placement.gaps}
    elsewhere.update(value for value, it in unaligned_products(graph).items() if it.is_padded)
    made_of = [it.results for kind in (LaunchKind.BLOCK, LaunchKind.PRODUCT) for it in launches.of_kind(kind)]
    fixed = {*graph.input_values, *products_of_matrices(graph)}.union(*made_of) - elsewhere
    known = {value: View(value, placement.strides[value]) for value in fixed if not graph.depends_on_sizes}
    views, merged = set[int](), dict[int, View]()
    for launch in launches.launches:
        item, values = graph.numbered()[launch.nodes[0]]
        if launch.kind not in (LaunchKind.LIBRARY, LaunchKind.VIEW) or item.op not in VIEWS or elsewhere.intersection(values):
            continue
        [value], source = values, item.operands[0]
        views.add(value)
        shown = shown_at(item, graph.types[source].shape, known[source].strides) if source in known else None
        if shown is not None:
            known[value] = View(known[source].base, shown[0], known[source].offset + shown[1])
            if source in views:
                merged[value] = known[value]
    made = {graph.makers[value] for value in merged}
    needed = {operand for item in graph.outputs for operand in item.operands}
    needed |= {operand for launch in launches.launches if made.isdisjoint(launch.nodes) for operand in launch.operands}
    return merged, frozenset(views - needed)
