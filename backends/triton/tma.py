"""Tiles loaded through tensor descriptors (TMA on Hopper and later; Triton writes them as pointers for other targets).

The hardware copies a box of a tensor to shared memory by its descriptor: base, shape, strides. It counts in boxes of powers of
two, so tiles with padding inside the tensor are loaded by pointers.
"""

from collections.abc import Sequence

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.backends.triton.tiles import Tile
from mirage_eg.backends.triton.writer import GRID_NAMES, Writer, times
from mirage_eg.ir.graph import REPLICATED

HAS_TMA = ("sm_90", "sm_100")  # of the targets
_MOST_DIMS = 5
_LARGEST_BOX = 256  # extent of each dim
_ALIGNMENT = 16  # bytes: of the base, of strides, and the least in a row of a box


def describable(writer: Writer, pointer: Pointer, tile: Tile) -> bool:
    """Whether the hardware can copy this tile, and is asked to."""
    size = pointer.dtype.itemsize
    return (
        writer.choices.descriptors
        and not writer.wide
        and not tile.ragged
        and 2 <= len(pointer.shape) <= _MOST_DIMS
        and len(tile.dims) >= 2
        and pointer.strides[-1] == 1
        and all(stride > 0 and stride * size % _ALIGNMENT == 0 for stride in pointer.strides[:-1])
        and all(extent <= _LARGEST_BOX for extent in tile.shape)
        and tile.shape[-1] * size >= _ALIGNMENT
    )


def descriptor_load(writer: Writer, pointer: Pointer, steps: Sequence[list[tuple[int, int]]], tile: Tile) -> str:
    """The load of a tile through a descriptor, which is made before the first block; `steps` are those of `address`."""
    name = writer.new_name(f"{pointer.tensor}_box")
    shape, strides, box = (list(values) for values in (pointer.shape, pointer.strides, tile.shape))
    writer.head.append(f"{name} = tl.make_tensor_descriptor({pointer.name}, {shape}, {strides}, {box})")
    offsets = []
    for moves in steps:
        writer.grid_used.update(grid_dim for grid_dim, _ in moves if grid_dim != REPLICATED)
        terms = [times("i" if dim == REPLICATED else GRID_NAMES[dim], step) for dim, step in moves]
        offsets.append(" + ".join(terms) or "0")
    load = f"{name}.load([{', '.join(offsets)}])"
    return load if len(tile.dims) == len(tile.shape) else f"{load}.reshape({list(tile.physical)})"


__all__ = ["HAS_TMA", "describable", "descriptor_load"]
