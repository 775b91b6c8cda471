"""The bytes of copies: of results into the caller's order, of concatenations, of rows."""

from collections.abc import Mapping

from mirage_eg.backends.cost.library_products import MOVED_ROWS
from mirage_eg.backends.launches.aligned_rows import narrowed_rows, with_gaps
from mirage_eg.backends.launches.attention import ROWS_OF_FLASH, LibraryAttention
from mirage_eg.backends.launches.image_layouts import is_channels_last_convolution
from mirage_eg.backends.launches.launch_graph import Launch, LaunchKind, launches_of
from mirage_eg.backends.launches.merged_views import merged_views
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.library import ROW_WRITES
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph


@once_per_graph
def _spread_bytes(graph: Graph) -> Mapping[int, int]:
    """The bytes that copies into the caller's rows, with gaps or without, move; by the results of kernels that they copy."""
    placement, narrowed = placement_of(graph), narrowed_rows(graph)
    found = dict[int, int]()
    for item in graph.outputs:
        [value] = item.operands
        kind, wanted, source = graph.types[value], item.get("strides"), value
        has_gaps = value in placement.gaps
        while (maker := graph.node_of[source]).op in RESHAPES or source in narrowed:
            has_gaps |= source in narrowed
            source = maker.operands[0]
        as_wanted = placement.strides[value] == wanted if wanted == with_gaps(kind) else not has_gaps
        if not as_wanted:
            found[source] = found.get(source, 0) + MOVED_ROWS * kind.nbytes
    return found


def reordered_bytes(graph: Graph, launch: Launch) -> int:
    """The bytes that copies move: of a kernel's result, which the caller has with other rows, or as a row-major image, and of
    operands that are copied from views."""
    of_result = _spread_bytes(graph).get(launch.results[-1], 0) + _image_bytes(graph, launch) + _attention_bytes(graph, launch)
    return of_result + _laid_bytes(graph).get(launch.step, 0)


@once_per_graph
def _laid_bytes(graph: Graph) -> Mapping[int, int]:
    """The bytes that copies of views move, by the step of the first kernel that reads a copy."""
    found, left = dict[int, int](), {*merged_views(graph).laid}
    for launch in launches_of(graph).kernels:
        first_read = left.intersection(launch.operands)
        found[launch.step] = sum(2 * graph.types[value].nbytes for value in first_read)
        left -= first_read
    return found


def _attention_bytes(graph: Graph, launch: Launch) -> int:
    """cuDNN's result has the order of its queries; with fewer rows FlashAttention is asked first."""
    match launch.call:
        case LibraryAttention(order=order, shapes=((_, _, rows, _), *_)) as it if order and rows > ROWS_OF_FLASH:
            strides = placement_of(graph).strides[it.queries]
            return 0 if strides[-3:] == it.side_by_side[-3:] else 2 * graph.types[launch.results[-1]].nbytes
    return 0


def _image_bytes(graph: Graph, launch: Launch) -> int:
    result, by_library = launch.results[-1], launch.kind in (LaunchKind.LIBRARY, LaunchKind.CONVOLUTION)
    if not by_library or all(result not in item.operands for item in graph.outputs):
        return 0
    images = placement_of(graph).images
    if result in images:
        return 0
    computed = launch.kind is LaunchKind.CONVOLUTION or is_channels_last_convolution(graph, graph.node_of[result])
    kept = graph.node_of[result].kind is Kind.ELEMENTWISE and not images.isdisjoint(launch.operands)
    return 2 * graph.types[result].nbytes if computed or kept else 0


def bytes_of_copies(graph: Graph, item: Node) -> int:
    """The bytes that a copy reads and writes: of rows in place the rows and their indices, of a concatenation the operands that
    no kernel writes at their places."""
    if item.op in ROW_WRITES:
        _, index, rows = (graph.types[value].nbytes for value in item.operands)
        return index + 2 * rows
    joined = placement_of(graph).joined
    return 2 * sum(graph.types[value].nbytes for value in item.operands if value not in joined)
