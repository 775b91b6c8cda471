"""Cumulative sums that a generated kernel computes: of rows in row-major order, from either end."""

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.weights import prepared_values

_TYPES = frozenset({DType.float16, DType.bfloat16, DType.float32})


@dataclass(frozen=True, slots=True)
class Scan:
    """The positions of a cumulative sum along the last dim of `x`, and of the reversals around it, if it is from the end."""

    nodes: tuple[int, ...]
    x: int
    value: int

    @property
    def is_reversed(self) -> bool:
        """Whether it is from the end of each row."""
        return len(self.nodes) > 1


@once_per_graph
def scans(graph: Graph) -> tuple[Scan, ...]:
    """The cumulative sums that generated kernels compute."""
    if graph.depends_on_sizes or all(item.op != "cumsum" for item in graph.nodes):
        return ()
    return tuple(_found(graph))


def _found(graph: Graph) -> Iterator[Scan]:
    strides, prepared = placement_of(graph).strides, prepared_values(graph)
    for position, (item, values) in enumerate(graph.numbered()):
        last = len(graph.types[values[0]].shape) - 1 if values else -1
        if item.op != "cumsum" or item["dim"] != last or graph.types[values[0]].dtype not in _TYPES:
            continue
        scan = _from_the_end(graph, position, item, values[0]) or Scan((position,), item.operands[0], values[0])
        plain = all(strides[value] == row_major(graph.types[value].shape) for value in (scan.x, scan.value))
        if plain and scan.value not in prepared and graph.node_of[scan.x].kind is not Kind.REARRANGEMENT:
            yield scan


def _from_the_end(graph: Graph, position: int, item: Node, value: int) -> Scan | None:
    """The scan of a reversed operand whose result is reversed, too, where nothing else reads either."""
    [x], readers = item.operands, graph.readers[value]
    before, after = graph.node_of[x], [graph.nodes[reader] for reader in readers]
    if len(after) != 1 or {before.op, after[0].op} != {"flip"} or len(graph.readers[x]) != 1:
        return None
    if any([*it["dims"]] != [item["dim"]] for it in (before, after[0])):
        return None
    result = next(values[0] for place, (_, values) in enumerate(graph.numbered()) if place == readers[0])
    return Scan((graph.makers[x], position, readers[0]), before.operands[0], result)
