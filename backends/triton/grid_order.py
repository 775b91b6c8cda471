"""The order in which the thread blocks of a kernel are launched: which grid dim is the fastest."""

from collections.abc import Sequence
from itertools import permutations
from math import prod

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.sizes import most

_CACHED = 16 << 20  # bytes that a cache surely holds from one read to the next
_SHARE = 16  # a tensor of so many times less than what is read in between costs little if it is read again
_HELD = 32 << 20  # bytes of operands that the L2 cache of an H200 holds from one column of thread blocks to the next


def grid_order(
    graph: Graph, inputs: Sequence[Pointer], outputs: Sequence[Pointer], uneven: Sequence[int] = ()
) -> tuple[int, ...]:
    """The grid dims as they are launched, the fastest one first.

    If there is a product: as given, or in an order that reads fewer bytes from memory, with dims late along which the length of
    the loop varies (`uneven`): long loops that start first leave no multiprocessor alone at the end. Otherwise consecutive
    thread blocks read or write consecutive memory of the largest tensor; dims along which blocks read another large tensor
    again come before, where the cache would have lost it in between.
    """
    dims = range(len(graph.grid))
    read = [*zip(inputs, (item["imap"] for item in graph.inputs), strict=True)]
    if any(item.kind is Kind.MATMUL for item in graph.nodes):
        grid = [*map(most, graph.grid)]
        orders = permutations(dims)  # the first one is as given
        return min(orders, key=lambda order: (_read_bytes(order, grid, read), -sum(map(order.index, uneven))))
    moving = [*read, *zip(outputs, (item["omap"] for item in graph.outputs), strict=True)]
    pointer, targets = max(moving, key=lambda pair: _bytes(pair[0]))
    new = [dim for dim in dims if targets[dim] == NEW_DIM]
    moved = {dim: new.index(dim) if dim in new else len(new) + targets[dim] for dim in dims if targets[dim] != REPLICATED}
    steps = {dim: most(pointer.strides[moved[dim]]) if dim in moved else 0 for dim in dims}
    order = sorted(dims, key=lambda dim: (steps[dim], -dim))
    again = dict.fromkeys(dims, False)
    for place, dim in enumerate(order):
        between = sum(
            _bytes(it) // prod(most(graph.grid[outer]) for outer in order[place:] if to[outer] != REPLICATED)
            for it, to in moving
        )
        lost = (it for it, targets in read if targets[dim] == REPLICATED and _bytes(it) * _SHARE > between)
        again[dim] = graph.grid[dim] != 1 and between > _CACHED and any(lost)
    return tuple(sorted(order, key=lambda dim: not again[dim]))


def _read_bytes(order: Sequence[int], grid: Sequence[int], read: Sequence[tuple[Pointer, Sequence[int]]]) -> int:
    """Bytes that thread blocks in this order read from memory: a tensor again for each step of a dim that does not move it, if
    more than the cache holds is read in between.

    16,384 × 3,072 × 768 in tiles of 128 × 256 took 217 µs on an H200 with the rows as the fastest dim, where 100 MB are read in
    between, and 181 in groups of four rows; 25,344 × 768 × 2,304, 39 MB, 177 and 155; 16,384 × 768 × 3,072, 25 MB, 205 and 219.
    """
    total = [_bytes(pointer) for pointer, _ in read]
    times = [1] * len(read)
    for place, dim in enumerate(order):
        inner = order[:place]
        between = sum(
            size // prod(grid[it] for it in range(len(grid)) if targets[it] != REPLICATED and it not in inner)
            for size, (_, targets) in zip(total, read, strict=True)
        )
        if grid[dim] > 1 and between > _HELD:
            times = [
                count * grid[dim] if targets[dim] == REPLICATED else count
                for count, (_, targets) in zip(times, read, strict=True)
            ]
    return sum(size * count for size, count in zip(total, times, strict=True))


def _bytes(pointer: Pointer) -> int:
    return prod(map(most, pointer.shape)) * pointer.dtype.itemsize
