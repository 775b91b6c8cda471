"""CuPy arrays under the interface `array_library.Library`."""

from collections.abc import Callable, Sequence
from typing import Any

from mirage_eg.backends.runtime.array_library import ArrayLayout, ArrayLocation, Check
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError


def _strides(layout: ArrayLayout) -> tuple[int, ...]:
    """CuPy's strides are in bytes."""
    return tuple(stride * DType(layout.dtype).itemsize for stride in layout.strides)


def _refuse_unknown(layout: ArrayLayout) -> None:
    if DType(layout.dtype).in_numpy != layout.dtype:
        raise GraphError(f"{layout.name} is {layout.dtype}, which CuPy has not; call with torch tensors")


class Cupy:
    """CuPy arrays."""

    name = "CuPy array"
    keeps_captured = False

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def locate(self, array: Any, what: str) -> ArrayLocation:
        """CuPy's strides are in bytes."""
        size, data = array.itemsize, array.data
        strides = tuple([stride // size for stride in array.strides])
        return ArrayLocation(data.device_id, array.shape, array.dtype.name, strides, data.ptr)

    def checker(self, layouts: Sequence[ArrayLayout]) -> Check:
        """CuPy's strides are in bytes. It has neither bfloat16 nor float8, so no array matches these types."""
        wanted = []
        for layout in layouts:
            dtype = None if DType(layout.dtype).in_numpy != layout.dtype else self._cupy.dtype(layout.dtype)
            wanted.append((dtype, layout.shape, _strides(layout)))

        def check(arrays: Sequence[Any]) -> tuple[list[int], int] | None:
            device: int = arrays[0].data.device_id
            found = []
            for array, (dtype, shape, strides) in zip(arrays, wanted):  # noqa: B905 (strict= takes 0.2 µs)
                data = array.data
                if (
                    array.dtype is not dtype  # NumPy has one object for each type; others go to the slow check
                    or array.shape != shape
                    or array.strides != strides
                    or data.device_id != device
                    or (pointer := data.ptr) % ALIGNMENT
                ):
                    return None
                found.append(pointer)
            return found, device

        return check

    def device(self) -> int:
        """CuPy's current device."""
        return int(self._cupy.cuda.runtime.getDevice())

    def stream(self, device: int) -> int:
        """CuPy's current stream."""
        handle: int = self._cupy.cuda.get_current_stream(device).ptr
        return handle

    def allocator(self, layout: ArrayLayout, device: int) -> Callable[[], Any]:
        """CuPy allocates on the current device: launching has set it, other callers may not have."""
        cupy = self._cupy
        _refuse_unknown(layout)
        dtype, strides = cupy.dtype(layout.dtype), _strides(layout)
        nbytes = layout.allocated * DType(layout.dtype).itemsize
        current, allocate, make = cupy.cuda.runtime.getDevice, cupy.cuda.alloc, cupy.ndarray

        def allocate_array() -> Any:
            if current() == device:
                return make(layout.shape, dtype=dtype, memptr=allocate(nbytes), strides=strides)
            with cupy.cuda.Device(device):
                return make(layout.shape, dtype=dtype, memptr=allocate(nbytes), strides=strides)

        return allocate_array

    def address(self, array: Any) -> int:
        """`data.ptr`."""
        pointer: int = array.data.ptr
        return pointer

    def memory(self, nbytes: int, device: int) -> Any:
        """From CuPy's pool."""
        with self._cupy.cuda.Device(device):
            return self._cupy.empty(nbytes, dtype="uint8")

    def resize(self, memory: Any, nbytes: int) -> None:
        """The memory stays: a captured graph would not keep it."""

    def part(self, memory: Any, offset: int, layout: ArrayLayout) -> Any:
        """A view."""
        _refuse_unknown(layout)
        return self._cupy.ndarray(layout.shape, dtype=layout.dtype, memptr=memory.data + offset, strides=_strides(layout))

    def copy(self, target: Any, source: Any) -> None:
        """By assignment."""
        target[...] = source

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        """On a new stream, which only the capture uses."""
        cuda = self._cupy.cuda
        with cuda.Device(device), cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            try:
                captured = run()
            finally:
                graph = stream.end_capture()

        def replay() -> None:
            graph.launch(cuda.get_current_stream())

        return captured, replay

    def to_torch(self, arrays: Sequence[Any]) -> list[Any]:
        """Tensors on the same memory."""
        import torch

        return [torch.as_tensor(array, device=torch.device("cuda", array.data.device_id)) for array in arrays]

    def from_torch(self, tensors: Sequence[Any]) -> list[Any]:
        """Arrays on the same memory."""
        return [self._cupy.asarray(tensor) for tensor in tensors]
