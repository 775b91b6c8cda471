"""imap, fmap and omap as a reshape, a transpose and a reshape between a whole tensor and the array of its tiles.

The array of tiles has leading dims (grid dims …, F), of extent 1 where the tile does not vary, and then the dims of the tile.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mirage_eg.ir.node import NEW_DIM, REPLICATED
from mirage_eg.ir.shapes import Shape


class TileMap(NamedTuple):
    """Result: x with shape `split`, its dims permuted by `permutation`, with shape `joined`."""

    split: Shape
    permutation: tuple[int, ...]
    joined: Shape


def load_map(shape: Shape, grid: Sequence[int], loop: int, imap: Sequence[int], fmap: int) -> TileMap:
    """From a tensor of `shape` to its tiles: each dim is split by every grid dim mapped to it (first is slowest), then by F."""
    parts_and_dims = [*zip(grid, imap, strict=True), (loop, fmap)]
    split: list[int] = []
    leading: dict[int, int] = {}  # leading dim -> its position in `split`
    tile: list[int] = []  # dim of the tile -> its position in `split`
    for dim, extent in enumerate(shape):
        for position, (parts, target) in enumerate(parts_and_dims):
            if target == dim:
                leading[position] = len(split)
                split.append(parts)
                extent //= parts
        tile.append(len(split))
        split.append(extent)
    leading_extents = [split[leading[i]] if i in leading else 1 for i in range(len(parts_and_dims))]
    permutation = (*(leading[i] for i in sorted(leading)), *tile)
    return TileMap(tuple(split), permutation, (*leading_extents, *(split[i] for i in tile)))


def store_map(tile: Shape, grid: Sequence[int], omap: Sequence[int]) -> TileMap:
    """From the tiles of extents `tile` to the tensor: new dims first, then each dim with its grid dims before the tile's.

    `split` has extent 1 at the grid dims with which the tensor does not vary, and at F.
    """
    lead = len(grid) + 1
    split = (*(1 if target == REPLICATED else parts for parts, target in zip(grid, omap, strict=True)), 1, *tile)
    dropped = [*(i for i, target in enumerate(omap) if target == REPLICATED), len(grid)]
    new = [i for i, target in enumerate(omap) if target == NEW_DIM]
    order, joined = list(new), [split[i] for i in new]
    for dim, extent in enumerate(tile):
        mapped = [i for i, target in enumerate(omap) if target == dim]
        order += [*mapped, lead + dim]
        for i in mapped:
            extent *= split[i]
        joined.append(extent)
    return TileMap(split, (*dropped, *order), tuple(joined))
