"""Threads of a block, warps of a kernel, and clusters: `block_dim` and blockdims in the units of the compiler.

A warp has 32 threads, as on NVIDIA's GPUs; on AMD's the compiler makes one of 64 of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from math import prod

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import Kind

WARP = 32
MOST_WARPS = 32


def warps_of(threads: int) -> int | None:
    """The warps of so many threads, or None if the compiler has no such block: a power of two, at most 1,024 threads."""
    warps = threads // WARP
    return warps if threads == warps * WARP and 1 <= warps <= MOST_WARPS and not warps & (warps - 1) else None


def written_warps(block: Graph, where: str) -> int:
    """The warps that a block graph asks for.

    Raises:
        UnsupportedError: its threads are no number of warps that the compiler takes.
    """
    warps = warps_of(block.threads)
    if warps is None:
        raise UnsupportedError(
            f"{where}: got a block of {block.threads} threads; wanted a power of two from {WARP} to {WARP * MOST_WARPS}"
        )
    return warps


def written_cluster(block: Graph, where: str) -> int:
    """The thread blocks of the cluster that a block graph asks for.

    Raises:
        UnsupportedError: blocks of a cluster cannot share its tiles.
    """
    if block.cluster > 1 and not (is_of_one_row(block) and fills_its_tiles(block)):
        wanted = "a row that is reduced, of a power of two, without loop and product"
        raise UnsupportedError(f"{where}: got a cluster of {block.cluster}; wanted {wanted}, as a cluster can share no other")
    return block.cluster


def is_of_one_row(block: Graph) -> bool:
    """Whether a block has one row, and neither loop nor product: only the thread blocks of a cluster can share it."""
    left = [prod(block.types[values[0]].shape) for item, values in block.numbered() if item.kind is Kind.REDUCTION]
    return block.loop == 1 and min(left, default=0) == 1 and all(item.kind is not Kind.MATMUL for item in block.nodes)


def fills_its_tiles(block: Graph) -> bool:
    """Whether no tile of a block graph is padded: a padded row in a cluster read outside its tensor on an H200."""
    return all(extent & (extent - 1) == 0 for kind in block.types for extent in kind.shape)


def with_warps(graph: Graph, warps: int | Sequence[int | None]) -> Graph:
    """The kernel graph with so many warps in each block, or in the blocks in order; None leaves a block as it is."""
    counts: Iterator[int | None] = iter(warps) if isinstance(warps, Sequence) else repeat(warps)

    def changed(item: Node) -> Node:
        if item.op != "block":
            return item
        block, count = item["graph"], next(counts)
        threads = block.threads if count is None else WARP * count
        return node(item.op, *item.operands, **(item.mapping | {"graph": replace(block, threads=threads)}))

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))
