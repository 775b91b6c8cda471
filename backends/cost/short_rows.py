"""What memory moves besides the bytes of a tile: rows that are short, or begin within a sector."""

from functools import lru_cache

from mirage_eg.ir.shapes import Shape

VECTOR = 16  # bytes that a thread stores at once
SECTOR = 64  # bytes of a row below which a load or a store moves more than it uses
SHORT_ROW = 0.16
"""The share of the bytes of loaded tiles with rows of a sector that memory takes longer for; it falls with the square of the
length.

On an H200 a kernel that copies floats at 4.25 TB/s took 1.16, 1.06 and 1.01 times as long by rows of 64, 128 and 256 bytes.
"""
UNALIGNED_ROW, ODD_ROW = 80, 170
"""The bytes that a stored row costs besides its own, where rows begin at multiples of 16 bytes but not of a sector, and others.

On an H200 kernels that read images channels last and store them by rows of 64, 128, 256 and 512 bytes took 1.6, 1.4, 1.2 and
1.05 times as long as a copy where planes have 15,876 floats, and 2.2, 1.7, 1.4 and 1.15 where they have 263,169.
"""


@lru_cache(maxsize=1 << 16)  # a search asks for few shapes, millions of times
def wasted_share(tile: Shape, tensor: Shape, size: int, is_stored: bool, strides: Shape | None = None) -> float:
    """Bytes that are moved besides those of a tile of a tensor, over those of the tile; `size`: bytes of an element.

    A row is what follows in memory without a gap: of a row-major tensor the last dim, and dims before it where the tile has the
    last ones whole.
    """
    row, pitch, first = size, size, len(tile) > 1  # the first dim of several may be that of partial results, of any number
    rows = zip(reversed(tile[first:]), reversed(tensor), strict=False)
    for extent, whole in rows if strides is None else _along(strides, tile, tensor):
        row, pitch = row * extent, pitch * whole
        if extent != whole:
            break
    else:
        if strides is None:
            return 0.0
    share = max(0.0, SECTOR / row - 1)
    if not is_stored:
        return share + SHORT_ROW * min(1.0, SECTOR / row) ** 2
    return share + (0 if pitch % SECTOR == 0 else ODD_ROW if pitch % VECTOR else UNALIGNED_ROW) / row


def _along(strides: Shape, tile: Shape, tensor: Shape) -> list[tuple[int, int]]:
    """The extents of a tile and of its tensor along dims that follow each other in memory, from the fastest one to a gap."""
    found, step = list[tuple[int, int]](), 1
    for stride, extent, whole in sorted(zip(strides, tile, tensor, strict=True)):
        if whole == 1 or stride == 0:
            continue
        if stride != step:
            break
        found.append((extent, whole))
        step *= whole
    return found
