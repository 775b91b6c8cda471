"""Where the elements of a tile lie among the threads of a block, as far as shared memory depends on it: as Triton decides it.

A layout is linear over bits: its registers, lanes and warps each step along powers of two of rows and columns. What two layouts
keep in the same registers need not go through shared memory at once: the tile then changes its layout piece by piece.
"""

from collections.abc import Sequence
from math import ceil, prod

from mirage_eg.backends.warps import WARP
from mirage_eg.ir.shapes import Shape

Base = tuple[int, int]  # a dim and a step along it

_MMA_ROWS, _MMA_COLUMNS = 16, 8  # of one instruction
_WIDEST = 16  # bytes that a thread reads or writes at once


def mma_registers(shape: Shape, warps: Shape, width: int = _MMA_COLUMNS) -> frozenset[Base]:
    """Steps between the registers of a thread in the result of mma or wgmma whose instructions are `width` columns wide.

    `shape` and `warps` may have dims of a batch before rows and columns.
    """
    *batch, rows, columns = range(len(shape))
    inside = {(columns, 1), (rows, 8), *((columns, step) for step in _powers(_MMA_COLUMNS, width))}
    first = {rows: _MMA_ROWS * warps[rows], columns: width * warps[columns], **{dim: warps[dim] for dim in batch}}
    return frozenset(inside).union(*(_along(dim, step, shape[dim]) for dim, step in first.items()))


def left_registers(shape: Shape, warps: Shape) -> frozenset[Base]:
    """Steps between the registers of a thread in the left operand of mma, of 16 bits an element."""
    inside = {(1, 1), (0, 8), *_along(1, 8, shape[1])}
    return frozenset(inside).union(_along(0, _MMA_ROWS * warps[0], shape[0]))


def row_registers(shape: Shape, itemsize: int, warps: int, order: Shape | None = None) -> frozenset[Base]:
    """Steps between the registers of a thread where neighbouring threads hold neighbours in a row, as loads want it.

    `order`: the dims as they lie in memory, that of the longest stride first.
    """
    if order is not None and list(order) != sorted(order):
        inner = row_registers(tuple(shape[dim] for dim in order), itemsize, warps)
        return frozenset((order[dim], step) for dim, step in inner)
    own = _own(shape, itemsize, warps)
    lanes, beside = _spread(shape, itemsize, warps)
    last = len(shape) - 1
    held = {(last, step) for step in _powers(1, own)}
    return frozenset(held).union(
        *(_along(dim, (own if dim == last else 1) * lanes[dim] * beside[dim], extent) for dim, extent in enumerate(shape))
    )


def _along(dim: int, first: int, extent: int) -> frozenset[Base]:
    return frozenset((dim, step) for step in _powers(first, extent))


def row_warps(shape: Shape, itemsize: int, warps: int) -> Shape:
    """How many warps lie along each dim of a tile whose neighbouring threads hold neighbours in a row."""
    return _spread(shape, itemsize, warps)[1]


def _own(shape: Shape, itemsize: int, warps: int) -> int:
    """Elements of a row that one thread holds side by side."""
    return min(_WIDEST // itemsize, max(1, prod(shape) // (WARP * warps)), shape[-1]) if shape else 1


def _spread(shape: Shape, itemsize: int, warps: int) -> tuple[Shape, Shape]:
    """Lanes and warps along each dim: the last dim takes what it can, then the one before it; the first takes the rest."""
    lanes, beside = [1] * len(shape), [1] * len(shape)
    lanes_left, warps_left = WARP, warps
    for dim in reversed(range(len(shape))):
        room = shape[dim] // (_own(shape, itemsize, warps) if dim == len(shape) - 1 else 1)
        lanes[dim] = lanes_left if dim == 0 else max(1, min(lanes_left, room))
        lanes_left //= lanes[dim]
        beside[dim] = warps_left if dim == 0 else max(1, min(warps_left, room // lanes[dim]))
        warps_left //= beside[dim]
    return tuple(lanes), tuple(beside)


def scratch_share(one: frozenset[Base], other: frozenset[Base], itemsize: int, dims: int, from_rows: bool = False) -> float:
    """The share of a tile that goes through shared memory at once when it changes from one layout to the other.

    `from_rows`: `one` is how a load lies.
    """
    common = one & other
    beside = (dims - 1, 1) in common
    if itemsize == 2:
        together = int(beside)  # so many of the common steps move as one
    elif from_rows:
        together = 0 if beside else len(common)
    else:
        together = 2
    return 0.5 ** max(0, len(common) - together)


def mma_warps(shape: Shape, warps: int, chained: bool) -> Shape:
    """How the warps of a block share the result of mma."""
    rows, columns = shape
    if chained:
        return (warps, 1) if rows >= columns else (1, warps)
    down = across = 1
    while down * across < warps:
        if ceil(rows / _MMA_ROWS / down) >= ceil(columns / _MMA_COLUMNS / across):
            down *= 2
        else:
            across *= 2
    return down, across


def wgmma_warps(shape: Shape, warps: int, chained: bool) -> Shape:
    """How the warps of a block share the result of wgmma: four at least lie below each other."""
    down, across = 4, 1
    if chained:
        return warps, 1
    while down * across < warps:
        if shape[0] > down * _MMA_ROWS:
            down *= 2
        else:
            across *= 2
    return down, across


def _powers(first: int, end: int) -> Sequence[int]:
    """Powers of two from the first on that lie below the end."""
    return [1 << i for i in range(max(0, first.bit_length() - 1), max(0, end - 1).bit_length()) if 1 << i >= first]


__all__ = ["Base", "left_registers", "mma_registers", "mma_warps", "row_registers", "row_warps", "scratch_share", "wgmma_warps"]
