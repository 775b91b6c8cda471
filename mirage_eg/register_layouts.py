"""Where the elements of a tile lie among the threads of a block, as far as shared memory depends on it: as Triton decides it.

A layout is linear over bits: its registers, lanes and warps each step along powers of two of rows and columns. What two layouts
keep in the same registers need not go through shared memory at once: the tile then changes its layout piece by piece.
"""

from collections.abc import Sequence
from math import ceil, prod

from mirage_eg.backends.warps import WARP
from mirage_eg.ir.shapes import Shape

Base = tuple[int, int]  # a step of rows and one of columns, of which one is 0

_MMA_ROWS, _MMA_COLUMNS = 16, 8  # of one instruction
_WIDEST = 16  # bytes that a thread reads or writes at once


def mma_registers(shape: Shape, warps: Shape, width: int = _MMA_COLUMNS) -> frozenset[Base]:
    """Steps between the registers of a thread in the result of mma or wgmma whose instructions are `width` columns wide."""
    rows, columns = shape
    inside = {(0, 1), (8, 0), *((0, step) for step in _powers(_MMA_COLUMNS, width))}
    down = ((step, 0) for step in _powers(_MMA_ROWS * warps[0], rows))
    across = ((0, step) for step in _powers(width * warps[1], columns))
    return frozenset(inside).union(down, across)


def left_registers(shape: Shape, warps: Shape) -> frozenset[Base]:
    """Steps between the registers of a thread in the left operand of mma, of 16 bits an element."""
    rows, columns = shape
    down = ((step, 0) for step in _powers(_MMA_ROWS * warps[0], rows))
    return frozenset({(0, 1), (8, 0), *((0, step) for step in _powers(8, columns))}).union(down)


def row_registers(shape: Shape, itemsize: int, warps: int) -> frozenset[Base]:
    """Steps between the registers of a thread where neighbouring threads hold neighbours in a row, as loads want it."""
    (rows, columns), own = shape, _own(shape, itemsize, warps)
    lanes, beside = _spread(shape, itemsize, warps)
    first_row, first_column = lanes[0] * beside[0], own * lanes[1] * beside[1]
    along = ((0, step) for step in (*_powers(1, own), *_powers(first_column, columns)))
    return frozenset((step, 0) for step in _powers(first_row, rows)).union(along)


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


def scratch_share(one: frozenset[Base], other: frozenset[Base], itemsize: int) -> float:
    """The share of a tile that goes through shared memory at once when it changes from one layout to the other."""
    common = one & other
    together = int((0, 1) in common) if itemsize == 2 else 2  # so many of the common steps move as one
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
