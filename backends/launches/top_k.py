"""Top-k of rows as one generated kernel, with the ops that compute the rows and the ops on the chosen elements.

The router of a layer of experts is such a kernel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mirage_eg.backends.launches.generated_ops import scans
from mirage_eg.backends.launches.implicit_products import implicit_products
from mirage_eg.backends.launches.library_calls import made_by_calls
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import SOFTMAXES
from mirage_eg.ir.op.elementwise import CASTS, record_of, to_a_type
from mirage_eg.ir.op.library import CHOICES, ORDERS, ROW_READS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import prepared_values

_TYPES = frozenset({DType.float16, DType.bfloat16, DType.float32})
_MOST_CHOSEN = 32  # each is a maximum of the row
_WIDEST = 4096  # elements of a row, which a program holds
_REDUCTIONS = ("sum", "mean", "max")


@dataclass(frozen=True, slots=True)
class TopK:
    """The positions of a top-k, of the ops `before` it that compute its rows, and of the ops `after` it, which gather the
    chosen elements or compute on them.

    The kernel reads the values `operands` and stores `results`, which other launches read.
    """

    order: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """All positions, in the order of the program."""
        return (*self.before, self.order, *self.after)


@once_per_graph
def top_ks(graph: Graph) -> tuple[TopK, ...]:
    """The orders of rows that generated kernels compute."""
    if graph.depends_on_sizes or not any(item.op in ORDERS for item in graph.nodes):
        return ()
    return tuple(_top_ks(graph))


def _top_ks(graph: Graph) -> Iterator[TopK]:
    elsewhere = _elsewhere(graph)
    for position, (item, values) in enumerate(graph.numbered()):
        if item.op not in ORDERS or not 1 <= (item.get("count") or 0) <= _MOST_CHOSEN:
            continue
        *lead, width = graph.types[item.operands[0]].shape
        if item["dim"] != len(lead) or width > _WIDEST or graph.types[item.operands[0]].dtype not in _TYPES:
            continue
        after = _after(graph, position, values[0], (*lead, width), elsewhere)
        before = _before(graph, position, {position, *after}, (*lead, width), elsewhere)
        found = _plain(graph, position, before, after) or _plain(graph, position, [], after)
        if found is not None and found.results:  # else nothing reads it
            yield found


def _elsewhere(graph: Graph) -> set[int]:
    """The nodes of other launches of several ops."""
    nodes = [it.nodes for it in scans(graph)] + [it.nodes for it in implicit_products(graph)]
    return {graph.makers[value] for value in made_by_calls(graph)}.union(*nodes)


def _after(graph: Graph, order: int, places: int, rows: Shape, elsewhere: set[int]) -> list[int]:
    """The nodes behind that read rows at the places, or compute on what was read."""
    few = (*rows[:-1], graph.types[places].shape[-1])
    known, nodes = set[int](), list[int]()
    for position in range(order + 1, len(graph.nodes)):
        item, values = graph.numbered()[position]
        if item.op in CHOICES - ROW_READS and item.operands[1] == places and item["dim"] == len(few) - 1:
            source = item.operands[0]
            taken = graph.types[source].shape == rows and graph.makers[source] < order and graph.types[source].dtype in _TYPES
        else:
            taken = (
                bool(item.operands)
                and position not in elsewhere
                and known.issuperset(item.operands)
                and computes_rows(graph, item, values, few)
            )
        if taken:
            nodes.append(position)
            known.update(values)
    return nodes


def _before(graph: Graph, order: int, behind: set[int], rows: Shape, elsewhere: set[int]) -> list[int]:
    """The nodes that compute the rows for this launch alone, whose other nodes are the order and those `behind` it."""
    nodes = set(behind)
    for position in range(order - 1, -1, -1):
        item, values = graph.numbered()[position]
        readers = {reader for value in values for reader in graph.readers[value]}
        if position in elsewhere or not readers or not readers <= nodes or item.kind is Kind.BOUNDARY:
            continue
        if computes_rows(graph, item, values, rows) and all(_is_read(graph, it, rows) for it in item.operands):
            nodes.add(position)
    return sorted(nodes - behind)


def computes_rows(graph: Graph, item: Node, values: range, rows: Shape) -> bool:
    """Whether an op computes floats of each row of that row alone: elementwise, or by a reduction of the last dim."""
    if len(values) != 1 or graph.types[values[0]].dtype not in _TYPES or graph.types[values[0]].shape not in _shapes(rows):
        return False
    if any(graph.types[it].dtype not in _TYPES for it in item.operands):
        return False
    if item.kind is Kind.ELEMENTWISE:
        record = record_of(item.op)
        return item.op in CASTS or (record is not None and record.triton is not None and not to_a_type(item.op))
    is_along = item.get("dim") == len(rows) - 1 and graph.types[item.operands[0]].shape == rows
    return is_along and (item.op in _REDUCTIONS or (item.op in SOFTMAXES and len(item.operands) == 1))


def _shapes(rows: Shape) -> tuple[Shape, Shape]:
    return rows, (*rows[:-1], 1)


def _is_read(graph: Graph, value: int, rows: Shape) -> bool:
    """Whether the kernel may read a value: whole rows, a number of each row, or one row for all."""
    shape = graph.types[value].shape
    return shape in _shapes(rows) or (shape[-1:] == rows[-1:] and all(extent == 1 for extent in shape[:-1]))


def _plain(graph: Graph, order: int, before: list[int], after: list[int]) -> TopK | None:
    """The launch of these nodes if all tensors in memory are row-major, and made in each call."""
    nodes = {order, *before, *after}
    read = dict.fromkeys(it for position in sorted(nodes) for it in graph.nodes[position].operands)
    operands = tuple(it for it in read if graph.makers[it] not in nodes)
    made = [value for position in sorted(nodes) for value in graph.numbered()[position][1]]
    results = tuple(value for value in made if not nodes.issuperset(graph.readers[value]))
    strides, prepared = placement_of(graph).strides, prepared_values(graph)
    plain: Callable[[int], bool] = lambda value: strides[value] == row_major(graph.types[value].shape)  # noqa: E731
    moved = any(graph.node_of[it].kind is Kind.REARRANGEMENT and graph.node_of[it].op not in RESHAPES for it in operands)
    if moved or not all(map(plain, (*operands, *results))) or not prepared.isdisjoint(made):
        return None
    return TopK(order, tuple(before), tuple(after), operands, results)
