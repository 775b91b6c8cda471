"""Threads of a block and warps of a kernel: `block_dim` and blockdims in the units of the compiler.

A warp has 32 threads, as on NVIDIA's GPUs; on AMD's the compiler makes one of 64 of each.
"""

from collections.abc import Sequence
from itertools import repeat

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes

WARP = 32
MOST_WARPS = 32


def warps_of(threads: int) -> int | None:
    """The warps of so many threads, or None if the compiler has no such block: a power of two, at most 1,024 threads."""
    warps = threads // WARP
    return warps if threads == warps * WARP and 1 <= warps <= MOST_WARPS and not warps & (warps - 1) else None


def written_warps(block: Graph, where: str) -> int:
    """The warps that a block graph asks for.

    Raises UnsupportedError: its threads are no number of warps that the compiler takes.
    """
    warps = warps_of(block.threads)
    if warps is None:
        raise UnsupportedError(
            f"{where}: got a block of {block.threads} threads; wanted a power of two from {WARP} to {WARP * MOST_WARPS}"
        )
    return warps


def with_warps(graph: Graph, warps: int | Sequence[int | None]) -> Graph:
    """The kernel graph with so many warps in each block, or in the blocks in order; None leaves a block as it is."""
    pairs = zip(graph.blocks, warps if isinstance(warps, Sequence) else repeat(warps), strict=False)
    threads = ((block, block.threads if count is None else WARP * count) for block, count in pairs)
    return with_attributes(graph, blocks=({"graph": block.in_threads(count, block.cluster)} for block, count in threads))
