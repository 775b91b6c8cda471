"""What launching needs of an array library, and how it says where an array is and how it lies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mirage_eg.backends.triton.addressing import row_major
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.shapes import Shape

ALIGNMENT = 16  # bytes, which compiled kernels count on


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """What an emitted program says of an input or a buffer; strides in elements."""

    name: str
    shape: Shape
    dtype: str
    strides: Shape

    @property
    def is_dense(self) -> bool:
        """Whether it is row-major and without gaps."""
        return self.strides == row_major(self.shape)

    @property
    def elements(self) -> int:
        """From the first to behind the last."""
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """Likewise, in bytes."""
        return self.elements * DType(self.dtype).itemsize


class ArrayLocation(NamedTuple):  # made for each argument of each call: a tuple is made faster than a record
    """Where an array is, and how; `device` is None for memory that no GPU has."""

    device: int | None
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    pointer: int


# Gives the addresses of arrays and the device that has them all; None where `Library.place` must look closer.
Check = Callable[[Sequence[Any]], tuple[list[int], int] | None]


class Library(Protocol):
    """An array library."""

    name: str
    keeps_captured: bool  # whether memory allocated while a CUDA graph is captured stays that graph's without our help

    def place(self, array: Any, what: str) -> ArrayLocation:
        """Where the array called `what` is.

        Raises:
            GraphError: it cannot be passed to a kernel.
        """

    def checker(self, layouts: Sequence[ArrayLayout]) -> Check:
        """What tells arrays that are just so, or the first of them, from others, as fast as it can."""

    def device(self) -> int:
        """The current device."""

    def stream(self, device: int) -> int:
        """The caller's current stream on the device."""

    def empty(self, layout: ArrayLayout, device: int) -> Any:
        """A new array."""

    def zeros(self, layout: ArrayLayout, device: int) -> Any:
        """A new array of zeros, on the current stream."""

    def maker(self, layout: ArrayLayout, device: int) -> Callable[[], Any]:
        """What makes such arrays, as often as it is called."""

    def address(self, array: Any) -> int:
        """Where an array that is known to be right begins."""

    def memory(self, nbytes: int, device: int) -> Any:
        """New memory, as an array of bytes."""

    def part(self, memory: Any, offset: int, layout: ArrayLayout) -> Any:
        """An array in such memory, from this byte on."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy on the current stream."""

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        """What `run` returns when a CUDA graph of it is captured, and what replays that graph on the current stream."""


__all__ = ["ALIGNMENT", "ArrayLayout", "ArrayLocation", "Check", "Library"]
