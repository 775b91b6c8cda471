"""The order in which the thread blocks of a kernel are launched: which grid dim is the fastest."""

from collections.abc import Sequence
from math import prod

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.sizes import most

_CACHED = 16 << 20  # bytes that a cache surely holds from one read to the next
_SHARE = 16  # a tensor of so many times less than what is read in between costs little if it is read again


def grid_order(graph: Graph, inputs: Sequence[Pointer], outputs: Sequence[Pointer]) -> tuple[int, ...]:
    """The grid dims as they are launched, the fastest one first: as given, if there is a product.

    Otherwise consecutive thread blocks read or write consecutive memory of the largest tensor. Dims along which blocks read
    another large tensor again come before, where the cache would have lost it in between.
    """
    dims = range(len(graph.grid))
    if any(item.kind is Kind.MATMUL for item in graph.nodes):
        return tuple(dims)
    read = [*zip(inputs, (item["imap"] for item in graph.inputs), strict=True)]
    written = zip(outputs, (item["omap"] for item in graph.outputs), strict=True)
    pointer, targets = max((*read, *written), key=lambda pair: _bytes(pair[0]))
    new = [dim for dim in dims if targets[dim] == NEW_DIM]
    moved = {dim: new.index(dim) if dim in new else len(new) + targets[dim] for dim in dims if targets[dim] != REPLICATED}
    steps = {dim: most(pointer.strides[moved[dim]]) if dim in moved else 0 for dim in dims}
    order = sorted(dims, key=lambda dim: (steps[dim], -dim))
    again = dict.fromkeys(dims, False)
    for place, dim in enumerate(order):
        between = _bytes(pointer) // prod(most(graph.grid[it]) for it in order[place:])
        lost = (it for it, targets in read if targets[dim] == REPLICATED and _bytes(it) * _SHARE > between)
        again[dim] = graph.grid[dim] != 1 and between > _CACHED and any(lost)
    return tuple(sorted(order, key=lambda dim: not again[dim]))


def _bytes(pointer: Pointer) -> int:
    return prod(map(most, pointer.shape)) * pointer.dtype.itemsize
