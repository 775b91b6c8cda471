"""A tiling of one kernel: the grid, the loop count, and the extents of tiles that follow."""

from dataclasses import dataclass
from functools import cache, cached_property

from mirage_eg.ir.ragged import part_extent


@dataclass(frozen=True)
class Tiling:
    """The numbers of one kernel: sizes of all axes, which axes the grid splits into how many blocks, and which a loop splits.

    One grid dim may split several axes, if no value has two of them: the columns of two products, say. The axis after the
    last is the dim of partial results, and its size the number of blocks along a split-K axis.
    """

    sizes: tuple[int, ...]
    grid: tuple[tuple[tuple[int, ...], int], ...]  # (axes, blocks), slowest grid dim first
    looped: int | None = None
    loop: int = 1

    @cached_property  # of structures that share it
    def tiles(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents of all axes in the tile of a block, and in the tile of one iteration."""
        whole, blocks = [*self.sizes], 1
        for group, count in self.grid:
            for axis in group:
                whole[axis] = equal_or_ragged(whole[axis], count)
                if axis == self.looped:
                    blocks = count
        piece = [*whole]
        if self.looped is not None:
            piece[self.looped] = equal_or_ragged(self.sizes[self.looped], blocks * self.loop)
        return tuple(whole), tuple(piece)

    @cached_property
    def form(self) -> tuple[bool, frozenset[int], bool]:
        """The part of a tiling on which the ops of its block graph depend: whether it loops, the axes that the grid cuts into
        unequal parts, and whether the loop does."""
        ragged, blocks = set[int](), 1
        for group, count in self.grid:
            for axis in group:
                if self.sizes[axis] % count:
                    ragged.add(axis)
                if axis == self.looped:
                    blocks = count
        uneven = self.looped is not None and self.sizes[self.looped] % (blocks * self.loop) > 0
        return self.loop > 1, frozenset(ragged), uneven


@cache
def equal_or_ragged(size: int, count: int) -> int:
    """The extent of a part of an axis."""
    part = part_extent(size, count)
    assert part is not None, "extents leave no part empty"
    return part


@dataclass(frozen=True, slots=True)
class TileAxes:
    """The axes of a load or step; `piece`: the loop splits the looped axis."""

    axes: frozenset[int]
    piece: bool
