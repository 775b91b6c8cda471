"""The placement of the values of a kernel graph in memory: strides, and views, which share the memory of another value."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mirage_eg.backends.launches.aligned_rows import strides_with_gaps
from mirage_eg.backends.launches.attention import query_layouts
from mirage_eg.backends.launches.concatenation import copied_parts, copied_views, copying_nodes, joint_concats
from mirage_eg.backends.launches.image_layouts import converted_inputs, image_layouts
from mirage_eg.backends.launches.views import View, joined_values, views_of
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import JOINS
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape, row_major, text


@dataclass(frozen=True)
class Placement:
    """The strides of every value in elements.

    `views`: values that are read in the memory of another one. `joined`: values that kernels write at their places in a
    concatenation. `images`: values that are channels last. `gaps`: values with gaps between their rows. `converted`: inputs of
    which a kernel makes copies channels last.
    """

    strides: tuple[Shape, ...]
    views: Mapping[int, View]
    joined: Mapping[int, View]
    images: frozenset[int]
    gaps: frozenset[int]
    converted: tuple[int, ...]

    @cached_property
    def offsets(self) -> Mapping[int, int]:
        """The offsets, in elements, of the values that lie in the memory of another one."""
        return {value: view.offset for value, view in (*self.views.items(), *self.joined.items())}

    @cached_property
    def gathered(self) -> frozenset[int]:
        """The values that kernels read in chosen rows of another one."""
        return frozenset(value for value, view in self.views.items() if view.rows is not None)


@once_per_graph
def placement_of(graph: Graph) -> Placement:
    """Where the values of a kernel graph lie: row-major but for declared strides, images, aligned rows, queries of attentions,
    views and parts of concatenations.

    Raises GraphError: layouts contradict each other.
    """
    given = declared_strides(graph)
    declared = frozenset(given)
    images = {} if graph.depends_on_sizes else image_layouts(graph, declared)
    plain = {value: row_major(kind.shape) for value, kind in enumerate(graph.types)}
    gaps = strides_with_gaps(graph, declared.union(images))
    queries = query_layouts(graph, declared.union(images, gaps))
    strides = [*(plain | given | images | gaps | queries).values()]
    parts = copied_parts(graph)
    joined = {value: view for value, view in joined_values(graph, strides, declared).items() if view.base not in parts}
    for value in queries.keys() - {view.base for view in joined.values()}:
        if graph.node_of[value].op in JOINS:  # the library joins them
            strides[value] = plain[value]
    copying = copying_nodes(graph)
    copied = frozenset(copying[place] for joint in joint_concats(graph, copying) for place in joint.members)
    copied |= parts.keys() | copied_views(graph).keys()
    views = views_of(graph, strides, declared, copied, frozenset((*images, *gaps)))
    for value, view in (*views.items(), *joined.items()):
        strides[value] = view.strides
    converted = converted_inputs(graph, strides)
    return Placement(tuple(strides), views, joined, frozenset(images), frozenset(gaps), converted)


def declared_strides(graph: Graph) -> dict[int, Shape]:
    """The strides that inputs, and the inputs and outputs of block graphs, declare for the values of the kernel graph."""
    declared: dict[int, tuple[Shape, str]] = {}

    def declare(value: int, strides: Shape, where: str) -> None:
        first, place = declared.setdefault(value, (strides, where))
        if first != strides:
            raise GraphError(f"{where}: got strides {text(strides)} for %{value}, but {place} has {text(first)}")

    for number, (item, values) in enumerate(graph.numbered()):
        if item.op == "input" and item.get("strides") is not None:
            declare(values[0], item["strides"], f"node {number}: input")
        if item.op == "block":
            for position, (operand, inner) in enumerate(zip(item.operands, item["graph"].inputs, strict=True)):
                if inner.get("strides") is not None:
                    declare(operand, inner["strides"], f"node {number}: block, input {position}")
            for position, (value, inner) in enumerate(zip(values, item["graph"].outputs, strict=True)):
                if inner.get("strides") is not None:
                    declare(value, inner["strides"], f"node {number}: block, output {position}")
    for value, (strides, where) in declared.items():
        if value in graph.input_values and any(stride < 0 for stride in strides):
            raise GraphError(f"{where}: got strides {text(strides)}; wanted none below 0")
    return {value: strides for value, (strides, _) in declared.items()}
