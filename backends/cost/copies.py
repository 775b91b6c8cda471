"""Results in the caller's order: which are row-major, and the bytes of copies: into that order, of concatenations, of rows."""

from mirage_eg.backends.launches.image_layouts import is_channels_last_convolution
from mirage_eg.backends.launches.launch_graph import Launch, LaunchKind
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.library import ROW_WRITES
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph


@once_per_graph
def row_major_results(graph: Graph) -> frozenset[int]:
    """The values that are results in row-major order, directly or reshaped."""
    found = {item.operands[0] for item in graph.outputs if item.get("strides") is None}
    for item, values in reversed([*graph.numbered()]):
        if item.op in RESHAPES and not found.isdisjoint(values):
            found.update(item.operands)
    return frozenset(found)


def reordered_bytes(graph: Graph, launch: Launch) -> int:
    """The bytes that the copy of a library kernel's result moves: of an image channels last that the caller has row-major."""
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
    """The bytes that a copy reads and writes: of rows in place the rows and their indices."""
    sizes = [graph.types[value].nbytes for value in item.operands]
    return sizes[1] + 2 * sizes[2] if item.op in ROW_WRITES else 2 * sum(sizes)
