"""The interface between launching and an array library: locations of arrays, allocation, streams, capture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.shapes import Shape, row_major


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The layout of an input or buffer of an emitted program; strides in elements."""

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
        """The number of elements from the first to the last in memory, gaps included."""
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """The same in bytes."""
        return self.elements * DType(self.dtype).itemsize

    @property
    def allocated(self) -> int:
        """The number of elements that an array of this layout needs: with the gap behind the last row, which kernels write."""
        return max(self.elements, 1, *(extent * stride for extent, stride in zip(self.shape, self.strides, strict=True)))


class ArrayLocation(NamedTuple):  # one for each argument of each call: a tuple is faster than a dataclass
    """Device, shape, type, strides and address of an array; `device` is None in CPU memory."""

    device: int | None
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    pointer: int


# The addresses of arrays and their common device; None if the slow check must decide.
Check = Callable[[Sequence[Any]], tuple[list[int], int] | None]


class Library(Protocol):
    """An array library."""

    name: str
    keeps_captured: bool  # whether the library itself keeps memory that was allocated during a capture for its CUDA graph

    def locate(self, array: Any, what: str) -> ArrayLocation:
        """The location of the array named `what`. Raises GraphError: the array cannot be passed to a kernel."""

    def checker(self, layouts: Sequence[ArrayLayout]) -> Check:
        """The fast check of arrays (the first ones, or all) against these layouts."""

    def device(self) -> int:
        """The current device."""

    def stream(self, device: int) -> int:
        """The caller's current stream on the device."""

    def allocator(self, layout: ArrayLayout, device: int) -> Callable[[], Any]:
        """A function that allocates such arrays."""

    def address(self, array: Any) -> int:
        """The address of an array that has passed the checks."""

    def memory(self, nbytes: int, device: int) -> Any:
        """New memory, as an array of bytes."""

    def resize(self, memory: Any, nbytes: int) -> None:
        """Give such memory its bytes, or 0: it may then serve later arrays of the stream. A library may keep it instead."""

    def part(self, memory: Any, offset: int, layout: ArrayLayout) -> Any:
        """An array at this byte of such memory."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy on the current stream."""

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        """Capture `run` in a CUDA graph: its result, and a function that replays the graph on the current stream."""
