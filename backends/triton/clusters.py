"""Clusters: the thread blocks of one share out the elements of a row, and reduce through distributed shared memory.

Triton cuts the first dim of a tile among the thread blocks. Triton 3.6 reduces within a thread block alone, and no tile of one
dim. So a row is a tile of two dims: each thread block reduces its part, then `cluster_helpers` reduce over the thread blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.triton.tiles import expanded, power_of_two, real_dims
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import EXPONENTIALS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape


def written_cluster(block: Graph, where: str) -> int:
    """The thread blocks of the cluster that a block graph asks for.

    Raises UnsupportedError: blocks of a cluster cannot share its tiles.
    """
    if block.cluster > 1 and shared_row(block) is None:
        got = f"a cluster of {block.cluster}" + (f" with a loop of {block.loop}" if block.loop > 1 else "")
        wanted = "a row that is reduced, without loop and product"
        raise UnsupportedError(f"{where}: got {got}; wanted {wanted}, as a cluster can share no other; try: cluster=1")
    return block.cluster


@dataclass(frozen=True, slots=True)
class SharedRow:
    """How the thread blocks of a cluster share a row: the first dim of each tile that has more than one element.

    `in_parts`: it is the only dim, and each thread block has a part of it; else each has one entry of it. `totals`: the values
    of one element that depend on a reduction over it, which each thread block has. With each is the place of the dim, counted
    from the end.
    """

    cluster: int
    in_parts: bool
    totals: Mapping[int, int]

    @property
    def variable_of_total(self) -> Shape:
        """The shape of the variable of a total."""
        return (self.cluster, 1) if self.in_parts else (self.cluster,)

    def shape_of(self, value: int, shape: Shape) -> Shape:
        """The shape of a value as a tile: a total has an entry for each thread block, unless the row is in parts."""
        if self.in_parts or value not in self.totals:
            return shape
        at = len(shape) - self.totals[value]
        return (*shape[:at], self.cluster, *shape[at + 1 :])


def shared_row(block: Graph) -> SharedRow | None:
    """How the thread blocks of a cluster share the row of a block; None without a cluster, or if they cannot share it."""
    if block.cluster == 1 or block.loop > 1:
        return None
    graph = expanded(block)
    if any(kind.dtype.is_integer or kind.dtype is DType.float64 for kind in graph.types):
        return None
    extents = [[kind.shape[dim] for dim in real_dims(kind.shape)] for kind in graph.types]
    firsts = {first for first, *_ in filter(None, extents)}
    in_parts = len(firsts) == 1 and max(map(len, extents)) == 1 and power_of_two(min(firsts)) >= block.cluster
    if not in_parts and (firsts != {block.cluster} or any(item.op in EXPONENTIALS for item in graph.nodes)):
        return None
    totals = dict[int, int]()
    for item, values in graph.numbered():
        if item.op not in ("input", "output") and not _is_shared(graph, item, values[0], totals):
            return None
    return SharedRow(block.cluster, in_parts, totals) if totals else None


def _is_shared(graph: Graph, item: Node, value: int, totals: dict[int, int]) -> bool:
    """Whether thread blocks can share an op: it neither moves nor reduces what one has alone. Adds a total to `totals`."""
    source, result = graph.types[item.operands[0]].shape if item.operands else (), graph.types[value].shape
    before = {totals[operand] for operand in item.operands if operand in totals}
    match item.kind:
        case Kind.REDUCTION if source[item["dim"]] != 1:
            if item["dim"] != real_dims(source)[0]:
                return True
            totals[value] = len(source) - item["dim"]
            return prod(result) == 1
        case Kind.REDUCTION:
            if before:
                [totals[value]] = before
            return len(source) - item["dim"] not in before
        case Kind.REARRANGEMENT if item.op in RESHAPES:
            if before:
                totals[value] = min(*before, len(result))
            return result != () and [source[dim] for dim in real_dims(source)] == [result[dim] for dim in real_dims(result)]
        case Kind.ELEMENTWISE:
            shapes = [graph.types[operand].shape for operand in item.operands]
            places = {_first(shape) for shape in shapes if prod(shape) > 1}
            if before and not places:
                [totals[value], *_] = before
            return len(places) < 2 and (len(real_dims(result)) < 2 or before <= places)
        case _:
            return False


def _first(shape: Shape) -> int:
    """The first dim of more than one element, counted from the end."""
    return len(shape) - real_dims(shape)[0]
