"""Clusters: what the thread blocks of one hold of its tiles. They reduce through distributed shared memory.

Without a loop they share out the elements of a row. With one they share out its iterations: the first dim of each tile that the
loop moves has an extent of the cluster, a slice each, and a reduction over it combines the accumulators.
"""

from math import prod

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, Node
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape


def written_cluster(block: Graph, where: str) -> int:
    """The thread blocks of the cluster that a block graph asks for.

    Raises UnsupportedError: blocks of a cluster cannot share its tiles.
    """
    if block.cluster > 1 and not (_is_of_slices(block) or is_of_one_row(block)):
        wanted = "a row that is reduced, without loop and product, or a loop of slices"
        raise UnsupportedError(f"{where}: got a cluster of {block.cluster}; wanted {wanted}, as a cluster can share no other")
    return block.cluster


def is_of_one_row(block: Graph) -> bool:
    """Whether a block has one row, and neither loop nor product."""
    left = [prod(block.types[values[0]].shape) for item, values in block.numbered() if item.kind is Kind.REDUCTION]
    return block.loop == 1 and min(left, default=0) == 1 and all(item.kind is not Kind.MATMUL for item in block.nodes)


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
