"""A kernel that masks the last tile of a dim of any size takes a constant: whether all its tiles are full, which need no mask.

Such a kernel has two binaries. The constant is its last argument.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mirage_eg.ir.ragged import LOOP, Cut
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import SizeExpression

FULL = "FULL"  # the name of the constant
CONSTANT = "constexpr"  # its type in a signature
SIZE = "i32"  # the type of a size
ALIGNED_SIZE = "i32:16"  # of a size that is a multiple of 16 where the constant is true
_ALIGNMENT = 16  # which Triton asks of strides
_AT_FULL_TILES = " at full tiles"


class Tiling(NamedTuple):
    """An extent, as its text, whose tiles are full where `step` divides it."""

    extent: str
    step: int

    @property
    def is_full(self) -> str:
        """The condition."""
        return f"{self.extent} % {self.step} == 0"


def tiling_of(cut: Cut, grid: Shape, loop: int) -> Tiling | None:
    """When no part of a cut is short; None if no size decides."""
    step = cut.part
    if cut.steps:
        place, step = max(cut.steps, key=lambda each: each[1])
        if not isinstance(loop if place == LOOP else grid[place], SizeExpression):
            return None  # iterations at the end may be empty, which are short, too
    return Tiling(str(cut.extent), step) if isinstance(cut.extent, SizeExpression) else None


def signature_of_sizes(sizes: Iterable[str], tilings: Sequence[Tiling]) -> tuple[str, ...]:
    """The types of the sizes that a kernel takes, and of its constant, if masks of these tilings depend on it."""
    aligned = {tiling.extent for tiling in tilings if tiling.step % _ALIGNMENT == 0}
    types = (ALIGNED_SIZE if size in aligned else SIZE for size in sizes)
    return (*types, CONSTANT) if tilings else (*types,)


def binary_of(kernel: str, arguments: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """The name of the binary for the arguments of a launch, and those without the constant."""
    if not arguments or not isinstance(arguments[-1], bool):
        return kernel, arguments
    return binary_name(kernel, arguments[-1]), arguments[:-1]


def binary_name(kernel: str, full: bool) -> str:
    """The name of a kernel's binary, by its constant."""
    return f"{kernel}{_AT_FULL_TILES}" if full else kernel


def kernel_name(binary: str) -> str:
    """The name of a binary's kernel."""
    return binary.removesuffix(_AT_FULL_TILES)


def binaries_of(signatures: Mapping[str, tuple[str, ...]]) -> dict[str, bool | None]:
    """The binaries of kernels, with the constant; None for a kernel without it."""
    return {
        binary_name(name, bool(full)): full
        for name, types in signatures.items()
        for full in ((False, True) if CONSTANT in types else (None,))
    }


__all__ = [
    "ALIGNED_SIZE",
    "CONSTANT",
    "FULL",
    "SIZE",
    "Tiling",
    "binaries_of",
    "binary_name",
    "binary_of",
    "kernel_name",
    "signature_of_sizes",
    "tiling_of",
]
