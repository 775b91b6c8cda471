"""A tiling of one kernel: the grid, the loop count, and the extents of tiles that follow."""

from dataclasses import dataclass

from mirage_eg.ir.ragged import part_extent


@dataclass(frozen=True, slots=True)
class Tiling:
    """The numbers of one kernel: sizes of all axes, which axes the grid splits into how many blocks, and the loop count.

    One grid dim may split several axes, if no value has two of them: the columns of two products, say. The axis after the
    last is the dim of partial results, and its size the number of blocks along a split-K axis.
    """

    sizes: tuple[int, ...]
    grid: tuple[tuple[tuple[int, ...], int], ...]  # (axes, blocks), slowest grid dim first
    loop: int = 1

    def tiles(self, looped: int | None) -> tuple[list[int], list[int]]:
        """The extents of all axes in the tile of a block, and in the tile of one iteration."""
        whole, blocks = [*self.sizes], 1
        for group, count in self.grid:
            for axis in group:
                whole[axis] = equal_or_ragged(whole[axis], count)
                if axis == looped:
                    blocks = count
        piece = [*whole]
        if looped is not None:
            piece[looped] = equal_or_ragged(self.sizes[looped], blocks * self.loop)
        return whole, piece

    def form(self, looped: int | None) -> tuple[bool, frozenset[int], bool]:
        """The part of a tiling on which the ops of its block graph depend: whether it loops, the axes that the grid cuts into
        unequal parts, and whether the loop does."""
        ragged, blocks = set[int](), 1
        for group, count in self.grid:
            for axis in group:
                if self.sizes[axis] % count:
                    ragged.add(axis)
                if axis == looped:
                    blocks = count
        return self.loop > 1, frozenset(ragged), looped is not None and self.sizes[looped] % (blocks * self.loop) > 0


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
