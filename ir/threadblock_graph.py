"""Writing a block graph by hand: grid, loop, loads, accumulators, stores; the names are those of mirage-project/mirage."""

from collections.abc import Sequence
from math import prod

from mirage_eg.ir.arguments import dtype_of
from mirage_eg.ir.builder import Builder, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.shapes import Shape

_REDUCTIONS = ("sum", "mean", "max", "rms")


class ThreadblockGraph(Builder):
    """A block graph being written; its tensors are tiles."""

    def __init__(
        self, grid_dim: Sequence[int], block_dim: Sequence[int] = (128, 1, 1), forloop_range: int = 1, cluster: int = 1
    ) -> None:
        super().__init__(Level.BLOCK, _extents("grid_dim", grid_dim), forloop_range)
        self.threads, self.cluster = prod(_extents("block_dim", block_dim)), cluster

    def new_input(self, dtensor: Tensor, input_map: Sequence[int], forloop_dim: int = REPLICATED) -> Tensor:
        """Load a tile: `input_map` has for each grid dim a dim of the tensor or −1; the loop iterates over `forloop_dim`."""
        if not isinstance(dtensor, Tensor):
            raise GraphError(f"new_input: got {dtensor!r}, wanted a tensor of the kernel graph")
        imap = tuple(input_map)[: len(self.checker.grid)]
        return self.op("input", shape=dtensor.shape, dtype=str(dtensor.dtype), imap=imap, fmap=forloop_dim)

    def forloop_accum(self, x: Tensor, acc: str | None = None, dim: int = -1) -> Tensor:
        """Sum over the loop; with `acc` ("sum", "mean", "max", "rms") reduce `dim` of the tile too."""
        if acc is None:
            return self.op("accum_sum", x)
        if acc not in _REDUCTIONS:
            raise GraphError(f"forloop_accum: got {acc!r}, wanted None or one of {', '.join(_REDUCTIONS)}")
        return self.op(f"accum_{acc}", x, dim=self._dim(f"accum_{acc}", x, dim))

    def forloop_accum_strided(self, x: Tensor, columns: int, dim: int = -1) -> Tensor:
        """out[i] = Σ over the loop and k of x[i + k·columns] along `dim`."""
        return self.op("accum_strided_sum", x, dim=self._dim("accum_strided_sum", x, dim), columns=columns)

    def new_output(self, stensor: Tensor, output_map: Sequence[int], dtype: object = None) -> None:
        """Store a tile: `output_map` has for each grid dim the dim that joins tiles, NEW_DIM, or −1 if the tile is constant.

        `dtype` is the element type in memory, by default that of the tile; float32 is best for partial results.
        """
        [position] = self._positions("new_output", [stensor])
        stored = None if dtype is None else dtype_of(dtype)
        self._append(node("output", position, omap=tuple(output_map)[: len(self.checker.grid)], dtype=stored))

    def graph(self) -> Graph:
        """The block graph, frozen."""
        return Graph(tuple(self.nodes), Level.BLOCK, self.checker.grid, self.checker.loop, self.threads, cluster=self.cluster)


def new_threadblock_graph(
    grid_dim: Sequence[int], block_dim: Sequence[int] = (128, 1, 1), forloop_range: int = 1, cluster: int = 1
) -> ThreadblockGraph:
    """Start a block graph that runs on `grid_dim` blocks of `block_dim` threads and loops `forloop_range` times.

    With a `cluster` each of them is so many thread blocks, which hold its tiles together.
    """
    return ThreadblockGraph(grid_dim, block_dim, forloop_range, cluster)


def _extents(name: str, given: object) -> Shape:
    if isinstance(given, Sequence) and all(isinstance(extent, int) and extent >= 1 for extent in given):
        return tuple(given)
    raise GraphError(f"new_threadblock_graph: {name}: got {given!r}, wanted extents of at least 1, as (128, 1, 1)")
