"""The binaries of a kernel that takes sizes as arguments.

A kernel that masks the last tile of a dim takes a constant as its last argument: whether all tiles are full. The binary for
full tiles has no such mask. Where a stride depends on a size, one more binary serves sizes that are multiples of 16: rows are
aligned there, and loads are vectorized. Triton's own launcher does the same.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mirage_eg.ir.ragged import LOOP, Cut
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import SizeExpression

FULL = "FULL"  # the name of the constant
CONSTANT = "constexpr"  # its type in a signature
SIZE = "i32"  # the type of a size
ALIGNED_SIZE = "i32:16"  # the type of a size that decides whether rows are aligned
ALIGNMENT = 16  # elements: Triton compiles a kernel apart for sizes that are multiples of it
_AT_FULL_TILES = " at full tiles"
_ALIGNED = " at aligned sizes"


class SizedTiles(NamedTuple):
    """An extent, as its text, whose tiles are full where `step` divides it."""

    extent: str
    step: int

    @property
    def are_full(self) -> str:
        return f"{self.extent} % {self.step} == 0"


def sized_tiles_of(cut: Cut, grid: Shape, loop: int) -> SizedTiles | None:
    """The extent and the step of a cut whose tiles a size may fill; None for other cuts."""
    step = cut.part
    if cut.steps:
        place, step = max(cut.steps, key=lambda each: each[1])
        if not isinstance(loop if place == LOOP else grid[place], SizeExpression):
            return None  # iterations at the end may be empty, which are short, too
    return SizedTiles(str(cut.extent), step) if isinstance(cut.extent, SizeExpression) else None


def signature_of_sizes(sizes: Sequence[str], sized_tiles: Sequence[SizedTiles], addresses_gain: bool) -> tuple[str, ...]:
    """The types of the sizes that a kernel takes, and of its constant, if it masks such tiles.

    Where the tiles are full, all sizes are aligned; else no binary is for aligned sizes.
    """
    aligned = {tiles.extent for tiles in sized_tiles if tiles.step % ALIGNMENT == 0}
    gains = addresses_gain and (not sized_tiles or aligned.issuperset(sizes))
    types = (ALIGNED_SIZE if gains else SIZE,) * len(sizes)
    return (*types, CONSTANT) if sized_tiles else types


def binary_of(kernel: str, types: Sequence[str], arguments: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """The name of the binary for the arguments of a launch, and those without the constant; no `types`: there is one binary."""
    if not types:
        return kernel, arguments
    full = bool(arguments[-1]) if CONSTANT in types else None
    sizes = [size for size, kind in zip(arguments, types, strict=True) if kind == ALIGNED_SIZE]
    binary = Binary(kernel, full, bool(sizes) and all(size % ALIGNMENT == 0 for size in sizes))
    return binary.name, arguments if full is None else arguments[:-1]


class Binary(NamedTuple):
    """A kernel, its constant (None without one), and whether its sizes are multiples of 16."""

    kernel: str
    full: bool | None = None
    aligned: bool = False

    @property
    def name(self) -> str:
        """The name of the kernel, then the sizes that the binary serves."""
        if self.full:
            return self.kernel + _AT_FULL_TILES
        return self.kernel + (_ALIGNED if self.aligned else "")


def kernel_name(binary: str) -> str:
    """The name of a binary's kernel."""
    return binary.removesuffix(_AT_FULL_TILES).removesuffix(_ALIGNED)


def binaries_of(kernel: str, types: Sequence[str]) -> list[Binary]:
    """The binaries of a kernel with these types of arguments."""
    aligned, short = ALIGNED_SIZE in types, False if CONSTANT in types else None
    binaries = [Binary(kernel, short), *([Binary(kernel, short, True)] if aligned else [])]
    return [*binaries, Binary(kernel, True, aligned)] if CONSTANT in types else binaries
