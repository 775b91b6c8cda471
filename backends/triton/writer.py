"""The kernel while it is being written: its lines by phase, its names, its tiles; and how tiles become expressions.

Shared by the modules of the emitter; the only mutable record of a kernel.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from mirage_eg.backends.triton.byte_casts import byte_cast, is_byte_cast
from mirage_eg.backends.triton.clusters import SharedRow
from mirage_eg.backends.triton.kernel_binaries import FULL, SizedTiles, sized_tiles_of
from mirage_eg.backends.triton.op_table import triton_type
from mirage_eg.backends.triton.safe_exp import SafeExponential
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.tiles import Tile, new_name
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.ragged import LOOP
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import SizeExpression

MAX_TILE = 1 << 20  # elements of one tile that Triton accepts
GRID_NAMES = ("gx", "gy", "gz")


@dataclass(slots=True)
class Writer:
    """The kernel while it is being written."""

    graph: Graph
    padded: list[Shape]
    safe: dict[int, SafeExponential]
    plain: Mapping[int, str]  # exponentials that are not shifted, and why
    wide: bool  # offsets need 64 bits
    schedule: Schedule
    names: set[str]
    loads: list[tuple[str, str]] = field(default_factory=list)  # loads that are hoisted: the variable, the line
    early_loads: list[str] = field(default_factory=list)  # before a dependent kernel waits for the kernel before it
    late_loads: list[str] = field(default_factory=list)  # behind the loop, before all else there
    lines: dict[Phase, list[str]] = field(default_factory=lambda: {phase: [] for phase in Phase})
    tiles: dict[int, Tile] = field(default_factory=dict)
    ranges: set[int] = field(default_factory=set)
    grid_used: set[int] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)
    offsets: dict[int, str] = field(default_factory=dict)  # what is missing in a tile, and its readers add
    sized_tiles: dict[str, SizedTiles] = field(default_factory=dict)  # of the ends of tiles that a size may fill
    masked: set[SizedTiles] = field(default_factory=set)  # those of masks that are written
    numbers: dict[int, list[str]] = field(default_factory=dict)  # of a tile that is loaded number by number
    halves: frozenset[int] = frozenset()  # values that are computed in float16
    row: SharedRow | None = None  # that the thread blocks of a cluster hold
    masks: frozenset[int] = frozenset()  # inputs that are 1 everywhere in a part of the loop (`skipped_iterations`)
    unmasked: dict[int, str] = field(default_factory=dict)  # place in the loop -> the line in that part; "" for none

    def say(self, phase: Phase, line: str, unmasked: str | None = None) -> None:
        """Append a line before, in or after the loop; in the loop also what it is where all masks are 1, if that differs."""
        if unmasked is not None and unmasked != line:
            self.unmasked[len(self.lines[phase])] = unmasked
        self.lines[phase].append(line)

    def new_name(self, wanted: str) -> str:
        return new_name(self.names, wanted)

    def range(self, extent: int) -> str:
        """The name of tl.arange(0, extent)."""
        self.ranges.add(extent)
        return f"r{extent}"

    def new_tile(self, value: int, name: str, dtype: DType, zero: frozenset[int] = frozenset(), finite: bool = False) -> Tile:
        """Record the tile of a value; without padding its zero and finite dims are all of them."""
        shape, padded = self.graph.types[value].shape, self.padded[value]
        if self.row is not None:
            shape, padded = self.row.shape_of(value, shape), self.row.shape_of(value, padded)
        tile = Tile(name, dtype, shape, padded, ends=self.ends(value))
        tile = replace(tile, zero=zero & tile.ragged, finite=finite or not tile.ragged)
        if prod(tile.padded) > MAX_TILE:
            raise UnsupportedError(
                f"tile `{name}` {text(tile.shape)} has {prod(tile.padded)} elements as {text(tile.padded)}; Triton takes at "
                f"most {MAX_TILE}: split it over the grid or the loop"
            )
        self.tiles[value] = tile
        return tile

    def ends(self, value: int, gap: int = 0) -> dict[int, str]:
        """The end, in this block and iteration, of each dim that is cut into parts of unequal extents; with a gap behind it."""
        ends = {}
        for dim, cut in enumerate(self.graph.cuts.get(value, ())):
            if cut is not None:
                self.grid_used.update(grid_dim for grid_dim, _ in cut.steps if grid_dim != LOOP)
                moved = [times("i" if grid_dim == LOOP else GRID_NAMES[grid_dim], step) for grid_dim, step in cut.steps]
                ends[dim] = " - ".join([str(cut.extent + gap), *moved])
                if (tiles := sized_tiles_of(cut, self.graph.grid, self.graph.loop)) is not None:
                    self.sized_tiles[ends[dim]] = tiles
        return ends

    def ordered_loads(self) -> list[str]:
        """The hoisted loads in the reverse order of their first use.

        The assembler delays a load until the previous one has arrived and been used, which adds their times. Volatile loads
        keep their order.
        """
        later = [line for phase in Phase for line in self.lines[phase]]

        def first_use(name: str) -> int:
            used = re.compile(rf"\b{re.escape(name)}\b")
            return next((position for position, line in enumerate(later) if used.search(line)), len(later))

        return [line for _, line in sorted(self.loads, key=lambda load: -first_use(load[0]))]

    def compute_dtype(self, value: int) -> DType:
        """The element type in which a kernel computes a value; integers keep theirs, in which they wrap, and `halves`."""
        dtype = self.graph.types[value].dtype
        return dtype if value in self.halves or dtype is DType.float64 or dtype.is_integer else DType.float32


def times(text: str, factor: int) -> str:
    """A product, unless the factor is 1."""
    return text if factor == 1 else f"{text} * {factor}"


def as_float(count: int) -> str:
    """A count as a number of type float; one that depends on sizes as its expression."""
    return f"({count})" if isinstance(count, SizeExpression) else str(float(count))


def cast(expression: str, have: DType, want: DType) -> str:
    """The expression in another element type."""
    if is_byte_cast(have, want):
        return byte_cast(expression, have, want)
    return expression if have is want else f"{expression}.to({triton_type(want)})"


def aligned(expression: str, tile: Tile, shape: Shape) -> str:
    """The expression of a tile with axes inserted so that it broadcasts in a tile of `shape`."""
    shift = len(shape) - len(tile.shape)
    have = {dim + shift for dim in tile.dims}
    return picked(expression, [dim in have for dim, extent in enumerate(shape) if extent > 1])


def masked(writer: Writer, expression: str, tile: Tile, dims: Sequence[int], fill: str) -> str:
    """The expression with `fill` in the padding of `dims`."""
    ragged = [dim for dim in dims if dim in tile.ragged]
    return f"tl.where({condition(writer, tile, ragged)}, {expression}, {fill})" if ragged else expression


def condition(writer: Writer, tile: Tile, dims: Sequence[int]) -> str:
    """The mask of a tile whose indices in all `dims` are no padding."""
    terms = []
    for dim in dims:
        name = writer.range(tile.padded[dim])
        ends = [str(tile.shape[dim])] if tile.padded[dim] != tile.shape[dim] else []
        ends += [tile.ends[dim]] if dim in tile.ends else []
        index = picked("", [other == dim for other in tile.dims])
        for end in ends:
            inside = f"{name} < {end}"
            if end in writer.sized_tiles:
                inside = f"({inside}) | {FULL}"
                writer.masked.add(writer.sized_tiles[end])
            terms.append((inside, index))
    return " & ".join(f"({inside}){index}" if index or len(terms) > 1 else inside for inside, index in terms)


def picked(expression: str, have: Sequence[bool]) -> str:
    """The expression indexed so that its axes are at the positions where `have` is true; a scalar needs no index."""
    if all(have) or not any(have):
        return expression
    return f"{expression}[{', '.join(':' if real else 'None' for real in have)}]"
