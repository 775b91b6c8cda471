"""The addresses of the elements of a tile, as Triton source.

A dim of a tensor is split first by the grid dims mapped to it, the first listed being the slowest, then by the loop; what
remains is the tile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from mirage_eg.backends.triton.tiles import Tile
from mirage_eg.backends.triton.writer import GRID_NAMES, Writer, picked, times
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import most

LARGEST_OFFSET = 2**31 - 1  # in elements; beyond it, offsets are computed in 64 bits
GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CUDA's
NO_PLACES: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument of a kernel: a tensor in memory, strides in elements. `gap`: unused elements behind each of its rows."""

    name: str
    tensor: str  # the name of its tile
    shape: Shape
    dtype: DType
    strides: Shape
    offset: int = 0  # of its first element in the argument's memory
    rows: "Rows | None" = None  # of its memory, if it is gathered
    gap: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a gathered tensor: their indices along the dims of the result, the elements from row to row, their number."""

    index: Pointer
    step: int
    extent: int


def highest_offset(pointer: Pointer) -> int:
    """The offset of the last element, at the largest sizes."""
    extents = zip(pointer.shape, pointer.strides, strict=True)
    return most(pointer.offset) + sum((most(extent) - 1) * most(stride) for extent, stride in extents)


def launch_grid(grid: Shape, order: Sequence[int]) -> Shape:
    """The grid as it is launched, its dims in this order; flattened if an extent exceeds the limit of the device."""
    grid = tuple(grid[dim] for dim in order)
    fits = all(most(extent) <= limit for extent, limit in zip(grid, GRID_LIMITS, strict=False))
    return (*grid, *(1,) * (3 - len(grid))) if fits else (prod(grid), 1, 1)


def coordinates(grid: Shape, order: Sequence[int], used: set[int], wide: bool, backwards: Sequence[int] = ()) -> list[str]:
    """Lines that give the block its coordinates, for the grid dims in `used`; the last ones first along dims `backwards`."""
    flat = launch_grid(grid, order)[: len(grid)] != tuple(grid[dim] for dim in order)
    lines = {}
    stride = 1
    for place, dim in enumerate(order):
        index = f"tl.program_id({place})" if not flat else _digit(stride, grid[dim], last=dim == order[-1])
        index = f"tl.cast({index}, tl.int64)" if wide else index
        lines[dim] = f"{GRID_NAMES[dim]} = " + (f"{grid[dim] - 1} - {index}" if dim in backwards else index)
        stride *= grid[dim]
    return [lines[dim] for dim in sorted(used)]


def _digit(stride: int, extent: int, last: bool) -> str:
    text = "tl.program_id(0)" + (f" // {stride}" if stride > 1 else "")
    return f"({text})" if last else f"({text} % {extent})"


def parts(splits: Sequence[tuple[int, int]], extent: int) -> list[tuple[int, int]]:
    """(grid dim or REPLICATED for the loop, elements by which one step moves) for a dim split so, tiles of `extent`."""
    steps = []
    for index, count in reversed(splits):
        if count > 1:
            steps.append((index, extent))
        extent *= count
    return steps[::-1]


def address(
    writer: Writer,
    pointer: Pointer,
    steps: Sequence[list[tuple[int, int]]],
    tile: Tile,
    lead: int = 0,
    places: Mapping[int, str] = NO_PLACES,
    thin: bool = False,
) -> str:
    """The pointers of all elements of a tile; the first `lead` dims of the tensor are no dims of the tile.

    `places` has indices in dims of the tile that are not the tile's own. A `thin` tile has one element along dims of stride 0.
    """
    terms = [str(pointer.offset)] if pointer.offset else []
    for dim, (moves, stride) in enumerate(zip(steps, pointer.strides, strict=True)):
        if thin and not stride:
            continue
        writer.grid_used.update(grid_dim for grid_dim, _ in moves if grid_dim != REPLICATED)
        names = [("i" if grid_dim == REPLICATED else GRID_NAMES[grid_dim], step) for grid_dim, step in moves]
        if dim - lead not in tile.dims:  # one element: only scalars move it
            terms += [times(name, step * stride) for name, step in names if stride]
            continue
        if dim - lead in places:
            inner = " + ".join([*(times(name, step) for name, step in names), places[dim - lead]])
            terms.append(times(f"({inner})" if names else inner, stride))
            continue
        own = writer.range(tile.padded[dim - lead])
        inner = " + ".join([*(times(name, step) for name, step in names), own])
        index = picked("", [other == dim - lead for other in tile.dims])
        terms.append(times(f"({inner}){index}" if names and (index or stride != 1) else f"{inner}{index}", stride))
    return " + ".join([pointer.name, *terms])
