"""A GPU that is not there: arrays that are addresses, a driver that notes what it is told. For tests of the runtime."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NoReturn

from mirage_eg.backends.runtime.array_library import ArrayLayout, ArrayLocation, Check
from mirage_eg.backends.runtime.cuda_driver import Function, LaunchCall
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.shapes import Shape, row_major

_addresses = count(1 << 20, 1 << 20)


@dataclass
class FakeArray:
    """An array of no library; `pointer` is an address that nothing lies at."""

    shape: Shape
    dtype: str
    strides: Shape
    device: int | None = 0
    pointer: int = field(default_factory=lambda: next(_addresses))


@dataclass
class FakeLibrary:
    """An array library whose current stream the test chooses."""

    current: int = 7
    name: str = "fake array"
    keeps_captured: bool = False
    made: list[FakeArray] = field(default_factory=list)
    copies: list[tuple[FakeArray, FakeArray]] = field(default_factory=list)

    def locate(self, array: FakeArray, what: str) -> ArrayLocation:
        return ArrayLocation(array.device, array.shape, array.dtype, array.strides, array.pointer)

    def checker(self, layouts: Sequence[ArrayLayout]) -> Check:
        def check(arrays: Sequence[FakeArray]) -> tuple[list[int], int] | None:
            device = arrays[0].device
            alike = all(
                (array.device, array.shape, array.dtype, array.strides) == (device, kind.shape, kind.dtype, kind.strides)
                and array.pointer % ALIGNMENT == 0
                for array, kind in zip(arrays, layouts, strict=False)
            )
            return ([array.pointer for array in arrays], device) if device is not None and alike else None

        return check

    def device(self) -> int:
        return 0

    def stream(self, device: int) -> int:
        return self.current

    def empty(self, layout: ArrayLayout, device: int) -> FakeArray:
        self.made.append(FakeArray(layout.shape, layout.dtype, layout.strides, device))
        return self.made[-1]

    def allocator(self, layout: ArrayLayout, device: int) -> Callable[[], FakeArray]:
        return partial(self.empty, layout, device)

    def address(self, array: FakeArray) -> int:
        return array.pointer

    def memory(self, nbytes: int, device: int) -> FakeArray:
        return self.empty(ArrayLayout("arena", (nbytes,), "uint8", (1,)), device)

    def resize(self, memory: FakeArray, nbytes: int) -> None:
        if self.keeps_captured:
            memory.pointer = next(_addresses) if nbytes else 0

    def part(self, memory: FakeArray, offset: int, layout: ArrayLayout) -> FakeArray:
        return FakeArray(layout.shape, layout.dtype, layout.strides, memory.device, memory.pointer + offset)

    def copy(self, target: FakeArray, source: FakeArray) -> None:
        self.copies.append((target, source))

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        return run(), lambda: None


@dataclass(frozen=True)
class Launched:
    """What the driver was told, with the values of the arguments."""

    kernel: str
    grid: Shape
    threads: int
    shared: int
    stream: int
    arguments: tuple[int, ...]
    dependent: bool = False
    cluster: int = 1


@dataclass
class FakeDriver:
    """A driver of H100s; kernels are numbered as they are loaded. `arity` is read from the number of parameters."""

    captures: frozenset[int] = frozenset()
    loaded: list[tuple[int, str, bytes, int]] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    inside: int = 0
    numbers: dict[int, int] = field(default_factory=dict)  # of streams, where they are not their handles

    def describe(self, device: int) -> tuple[int, int]:
        return 90, 232448

    def load(self, device: int, name: str, image: bytes, shared: int, cluster: int = 1) -> int:
        self.loaded.append((device, name, image, shared))
        return len(self.loaded) - 1

    def enter(self, device: int) -> bool:
        self.inside += 1
        return True

    def leave(self) -> None:
        self.inside -= 1

    def identify(self, stream: int) -> int:
        return self.numbers.get(stream, stream)

    def capturing(self, stream: int) -> bool:
        return stream in self.captures

    def prepare(self, function: Function, grid: Shape, stream: int, parameters: "ctypes.Array[Any]") -> LaunchCall:
        def launch() -> int:
            assert self.inside
            values = tuple(ctypes.c_uint64.from_address(address).value for address in parameters)
            name = self.loaded[function.handle][1]
            told = function.threads, function.shared, stream, values, function.dependent, function.cluster
            self.launched.append(Launched(name, grid, *told))
            return 0

        return launch

    def refuse(self, status: int) -> NoReturn:
        raise AssertionError(status)


def layouts(names: tuple[str, ...], types: Any) -> list[ArrayLayout]:
    """Row-major ones."""
    return [
        ArrayLayout(name, kind.shape, str(kind.dtype), row_major(kind.shape)) for name, kind in zip(names, types, strict=True)
    ]


def arrays_for(program: RunningProgram) -> list[FakeArray]:
    """Arguments as the program wants them."""
    return [FakeArray(kind.shape, kind.dtype, kind.strides) for kind in program.plan.inputs]
