"""Last-block reduction: two kernels in one, where the last block of each group does the work of the second kernel.

The first kernel splits a reduction over a grid dim, and its blocks store partial results. Blocks that differ in this dim alone
are a group. Each block counts itself in after its stores; the last one of a group combines the results and resets the count.

The result is the same if the second kernel has the grid of the first but for the split dim, and each of its blocks reads from
the first kernel only the results of one group.
"""

from collections.abc import Sequence
from itertools import permutations

from mirage_eg.ir.graph import NEW_DIM, REPLICATED, Graph, Node
from mirage_eg.ir.shapes import Shape

Read = tuple[Shape, Shape]  # how a value was stored (omap) and is loaded (imap)


def on_grid_of(first: Graph, last: Graph, reads: Sequence[Read]) -> tuple[Graph, int] | None:
    """`last` on the grid of `first`, with 1 in the split dim, and that dim; None if a block would read of several groups.

    `reads` are the values that `last` reads from `first`.
    """
    splits = {dim for omap, _ in reads for dim, target in enumerate(omap) if target == NEW_DIM and first.grid[dim] > 1}
    if len(splits) != 1:
        return None
    [split] = splits
    others = [dim for dim, extent in enumerate(first.grid) if extent > 1 and dim != split]
    own = [dim for dim, extent in enumerate(last.grid) if extent > 1]
    for order in permutations(own):
        if [last.grid[dim] for dim in order] == [first.grid[dim] for dim in others] and all(
            _one_group(omap, imap, split, list(zip(others, order, strict=True))) for omap, imap in reads
        ):
            return _regridded(last, first.grid, dict(zip(others, order, strict=True))), split
    return None


def can_combine(graph: Graph, number: int) -> bool:
    """Whether the last blocks of the block graph at this node can do the block graph at the next node."""
    items = list(graph.numbered())
    if number + 1 >= len(items) or items[number + 1][0].op != "block":
        return False
    (first, values), (last, _) = items[number], items[number + 1]
    stored = {value: item["omap"] for value, item in zip(values, first["graph"].outputs, strict=True)}
    loads = zip(last.operands, last["graph"].inputs, strict=True)
    reads = [(stored[value], item["imap"]) for value, item in loads if value in stored]
    return on_grid_of(first["graph"], last["graph"], reads) is not None


def _one_group(omap: Shape, imap: Shape, split: int, pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether a block loads exactly the results of the group with its coordinates.

    Results that are equal along a dim are stored by every block there, so that each group has them.
    """
    lead = omap.count(NEW_DIM)
    return omap[split] == NEW_DIM and all(
        imap[own] == (omap[dim] + lead if omap[dim] >= 0 else REPLICATED) for dim, own in pairs
    )


def _regridded(graph: Graph, grid: Shape, own: dict[int, int]) -> Graph:
    nodes = []
    for item in graph.nodes:
        attributes = dict(item.attributes)
        for name in ("imap", "omap"):
            if name in attributes:
                given = attributes[name]
                attributes[name] = tuple(given[own[dim]] if dim in own else REPLICATED for dim in range(len(grid)))
        nodes.append(Node(item.op, item.operands, tuple(attributes.items())))
    extents = tuple(extent if dim in own else 1 for dim, extent in enumerate(grid))
    return Graph(tuple(nodes), graph.level, extents, graph.loop, graph.threads)


__all__ = ["Read", "can_combine", "on_grid_of"]
