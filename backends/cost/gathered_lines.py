"""Loads of tiles of short rows: the threads of a warp read elements of several rows, and each row is another line of memory.

Triton gives the threads of a block the last dim first, 16 bytes each, then the other dims in their order, the first one first,
wherever their elements are in memory. By problem 82 of KernelBench's level 2 on an H200 (maxima of windows of 4 × 4 in
float16; Triton 3.6) a multiprocessor takes 1.8 cycles for each line that a warp's load touches.
"""

from functools import lru_cache
from math import prod

from mirage_eg.backends.triton.tiles import padded_elements, power_of_two
from mirage_eg.backends.triton.warps import WARP
from mirage_eg.ir.shapes import Shape, row_major

GATHERED = 230  # operations in the time of a line
_LINE, _VECTOR = 128, 16  # bytes


@lru_cache(maxsize=1 << 16)
def gathered_lines(tile: Shape, tensor: Shape, size: int, threads: int, given: Shape | None = None) -> float:
    """The lines that loads of a tile of a tensor touch besides those of its bytes; `size`: bytes of an element, `given`: the
    strides of one that is not row-major."""
    dims = [dim for dim, extent in enumerate(tile) if extent > 1]
    if len(tile) != len(tensor) or not dims:
        return 0.0
    strides = row_major(tensor) if given is None else given
    dims.sort(key=lambda dim: given is not None and strides[dim] == 1)  # one that follows in memory comes first, wherever it is
    last = dims[-1]
    aligned = tensor[last] & -tensor[last] if strides[last] == 1 else 1  # elements of a row's first address
    own = max(1, min(_VECTOR // size, aligned, power_of_two(tile[last]), padded_elements(tile) // threads))
    left, lines = WARP, 1.0
    for dim in (last, *dims[:-1]):
        lanes = min(left, power_of_two(tile[dim]) // (own if dim == last else 1))
        lines *= max(1.0, lanes * min(1.0, strides[dim] * (own if dim == last else 1) * size / _LINE))
        left //= lanes
    together = own * WARP // left  # elements of a load
    return prod(tile) / together * max(0.0, lines - max(1.0, together * size / _LINE))
