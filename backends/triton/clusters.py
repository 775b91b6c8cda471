"""Clusters: what the thread blocks of one hold of its tiles. They reduce through distributed shared memory.

Without a loop they share out the elements of a row. With one they share out its iterations: the first dim of each tile that the
loop moves has an extent of the cluster, a slice each, and a reduction over it combines the accumulators.

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
from mirage_eg.ir.node import REPLICATED, Node
from mirage_eg.ir.op.elementwise import EXPONENTIALS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape


def written_cluster(block: Graph, where: str) -> int:
    """The thread blocks of the cluster that a block graph asks for.

    Raises UnsupportedError: blocks of a cluster cannot share its tiles.
    """
    if block.cluster > 1 and not (_is_of_slices(block) or shared_row(block) is not None):
        wanted = "a row that is reduced, without loop and product, or a loop of slices"
        raise UnsupportedError(f"{where}: got a cluster of {block.cluster}; wanted {wanted}, as a cluster can share no other")
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


def _is_of_slices(block: Graph) -> bool:
    """Whether each thread block has a slice of all that the loop moves, and of every product: no product is cut otherwise."""
    moved = {values[0] for item, values in block.numbered() if item.kind is Kind.MATMUL or _is_moved(item)}
    return block.loop > 1 and bool(moved) and moved <= sliced_values(block)


def _is_moved(item: Node) -> bool:
    return item.op == "input" and item["fmap"] != REPLICATED


def sliced_values(block: Graph) -> frozenset[int]:
    """The tiles of a block graph with a loop of which each thread block of its cluster has a slice."""
    slices = set[int]()
    if block.cluster == 1 or block.loop == 1:
        return frozenset()
    for item, values in block.numbered():
        if item.op == "output" or block.types[values[0]].shape[:1] != (block.cluster,):
            continue
        if _is_moved(item) or not slices.isdisjoint(item.operands):
            slices.update(values)
    return frozenset(slices)


def shapes_in_thread_block(block: Graph) -> list[Shape]:
    """The shapes of the tiles that one thread block has: of its slices where the cluster shares out a loop."""
    slices = sliced_values(block)
    return [(1, *kind.shape[1:]) if value in slices else kind.shape for value, kind in enumerate(block.types)]
