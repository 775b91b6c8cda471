"""The bytes that memory moves in vain for a tile whose rows are shorter than a sector of it.

A row is what follows in memory without a gap: the last dim of a row-major tensor, with dims before it where the tile has the
last ones whole.
"""

from functools import lru_cache

from mirage_eg.ir.shapes import Shape

SECTOR = 64  # bytes of a row below which a load or a store moves more than it uses
_SHORT = 0.16
"""The share of the bytes of loaded tiles with rows of a sector that memory takes longer for; it falls with the square of the
length.

On an H200 a kernel that copies floats at 4.25 TB/s took 1.16, 1.06 and 1.01 times as long by rows of 64, 128 and 256 bytes.
"""


@lru_cache(maxsize=1 << 16)  # a search asks for few shapes, millions of times
def wasted_share(tile: Shape, tensor: Shape, size: int, is_stored: bool) -> float:
    """Bytes that are moved besides those of a tile of a tensor, over those of the tile; `size`: bytes of an element."""
    row, first = size, len(tile) > 1  # the first dim of several may be that of partial results, of any number
    for extent, whole in zip(reversed(tile[first:]), reversed(tensor), strict=False):
        row *= extent
        if extent != whole:
            break
    else:
        return 0.0
    share = max(0.0, SECTOR / row - 1)
    return share if is_stored else share + _SHORT * min(1.0, SECTOR / row) ** 2
