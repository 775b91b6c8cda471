"""The two array libraries that µGraphs run on, CuPy and torch, by what launching needs of them.

Neither is imported here: whoever brings an array has imported its library.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial, reduce
from operator import or_
from typing import Any, NamedTuple, Protocol

from mirage_eg.backends.runtime_cupy import CupyTorch, Tensor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, MirageError
from mirage_eg.ir.shapes import Shape

ALIGNMENT = 16  # bytes, which compiled kernels count on


@dataclass(frozen=True, slots=True)
class Layout:
    """What an emitted program says of an input or a buffer; strides in elements."""

    name: str
    shape: Shape
    dtype: str
    strides: Shape

    @property
    def elements(self) -> int:
        """From the first to behind the last."""
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """Likewise, in bytes."""
        return self.elements * DType(self.dtype).itemsize


class Place(NamedTuple):  # made for each argument of each call: a tuple is made faster than a record
    """Where an array is, and how; `device` is None for memory that no GPU has."""

    device: int | None
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    pointer: int


class Library(Protocol):
    """An array library."""

    name: str
    keeps_captured: bool  # whether memory allocated while a CUDA graph is captured stays that graph's without our help

    def place(self, array: Any, what: str) -> Place:
        """Where the array called `what` is.

        Raises:
            GraphError: it cannot be passed to a kernel.
        """

    def wanted(self, layout: Layout) -> Any:
        """What `addresses` compares an array with."""

    def addresses(self, arrays: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[int], int] | None:
        """The addresses of arrays that are just as wanted, and the device that has all; None where `place` must look closer."""

    def device(self) -> int:
        """The current device."""

    def stream(self, device: int) -> int:
        """The caller's current stream on the device."""

    def empty(self, layout: Layout, device: int) -> Any:
        """A new array."""

    def zeros(self, layout: Layout, device: int) -> Any:
        """A new array of zeros, on the current stream."""

    def maker(self, layout: Layout, device: int) -> Callable[[], Any]:
        """What makes such arrays, as often as it is called."""

    def address(self, array: Any) -> int:
        """Where an array that is known to be right begins."""

    def memory(self, nbytes: int, device: int) -> Any:
        """New memory, as an array of bytes."""

    def part(self, memory: Any, offset: int, layout: Layout) -> Any:
        """An array in such memory, from this byte on."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy on the current stream."""

    def functions(self) -> Any:
        """What library kernels call of torch."""

    def lend(self, array: Any) -> Any:
        """The array as library kernels take it."""

    def take_back(self, tensor: Any) -> Any:
        """The array that was lent or made so."""

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        """What `run` returns when a CUDA graph of it is captured, and what replays that graph on the current stream."""


class Torch:
    """torch tensors."""

    name = "torch tensor"
    keeps_captured = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._names = {getattr(torch, name): name for name in ("float16", "bfloat16", "float32", "float64")}
        self._grad_enabled = torch.is_grad_enabled
        # What torch's own generated code calls: a handle, without an object around it.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def place(self, array: Any, what: str) -> Place:
        """A tensor that wants a gradient is refused: kernels have none."""
        if array.requires_grad and self._grad_enabled():
            raise GraphError(f"{what}: the tensor requires a gradient, which a µGraph has not; call under torch.no_grad()")
        if array.layout is not self._torch.strided:
            raise GraphError(f"{what}: got a tensor of layout {array.layout}, wanted a strided one; use .to_dense()")
        dtype = self._names.get(array.dtype) or str(array.dtype).removeprefix("torch.")
        if not array.is_cuda:
            return Place(None, array.shape, dtype, array.stride(), 0)
        return Place(array.get_device(), array.shape, dtype, array.stride(), array.data_ptr())

    def wanted(self, layout: Layout) -> Any:
        """As torch says these."""
        return layout.shape, getattr(self._torch, layout.dtype), layout.strides

    def addresses(self, arrays: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[int], int] | None:
        """Nothing is said here of what is wrong with an array: calls are many, errors are not."""
        device, strided, grad_enabled = arrays[0].get_device(), self._torch.strided, self._grad_enabled()
        if device < 0:
            return None
        found = []
        for array, (shape, dtype, strides) in zip(arrays, wanted, strict=False):
            if (
                array.dtype is not dtype
                or array.layout is not strided
                or array.get_device() != device
                or array.shape != shape
                or array.stride() != strides
                or (grad_enabled and array.requires_grad)
            ):
                return None
            found.append(array.data_ptr())
        return None if reduce(or_, found) % ALIGNMENT else (found, device)

    def device(self) -> int:
        """torch's."""
        return int(self._torch.cuda.current_device())

    def stream(self, device: int) -> int:
        """torch's current stream."""
        return int(self._raw_stream(device)) if self._raw_stream else int(self._torch.cuda.current_stream(device).cuda_stream)

    def empty(self, layout: Layout, device: int) -> Any:
        """From torch's caching allocator."""
        return self.maker(layout, device)()

    def zeros(self, layout: Layout, device: int) -> Any:
        """`zero_` of an empty one."""
        return self.empty(layout, device).zero_()

    def maker(self, layout: Layout, device: int) -> Callable[[], Any]:
        """`empty_strided`."""
        dtype, where = getattr(self._torch, layout.dtype), self._torch.device("cuda", device)
        return partial(self._torch.empty_strided, layout.shape, layout.strides, dtype=dtype, device=where)

    def address(self, array: Any) -> int:
        """`data_ptr`."""
        return int(array.data_ptr())

    def memory(self, nbytes: int, device: int) -> Any:
        """From torch's caching allocator."""
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._torch.device("cuda", device))

    def part(self, memory: Any, offset: int, layout: Layout) -> Any:
        """A view."""
        return memory[offset:].view(getattr(self._torch, layout.dtype)).as_strided(layout.shape, layout.strides)

    def copy(self, target: Any, source: Any) -> None:
        """`copy_`."""
        target.copy_(source)

    def functions(self) -> Any:
        """torch."""
        return self._torch

    def lend(self, array: Any) -> Any:
        """As it is."""
        return array

    def take_back(self, tensor: Any) -> Any:
        """As it is."""
        return tensor

    def on_stream(self, stream: int, device: int) -> AbstractContextManager[Any]:
        """Make another library's stream torch's current one."""
        cuda = self._torch.cuda
        made = cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device)
        context: AbstractContextManager[Any] = cuda.stream(made)
        return context

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        """By torch.cuda.CUDAGraph, whose pool holds what is allocated meanwhile."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph):
            captured = run()
        return captured, graph.replay


def _refuse_bfloat16(layout: Layout) -> None:
    if layout.dtype == "bfloat16":
        raise GraphError(f"{layout.name} is bfloat16, which CuPy has not; call with torch tensors")


class Cupy:
    """CuPy arrays."""

    name = "CuPy array"
    keeps_captured = False

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def place(self, array: Any, what: str) -> Place:
        """CuPy's strides are in bytes."""
        size, data = array.itemsize, array.data
        strides = tuple([stride // size for stride in array.strides])
        return Place(data.device_id, array.shape, array.dtype.name, strides, data.ptr)

    def wanted(self, layout: Layout) -> Any:
        """As CuPy says these, strides in bytes; it has no bfloat16, which no array is then."""
        size = DType(layout.dtype).itemsize
        dtype = None if layout.dtype == "bfloat16" else self._cupy.dtype(layout.dtype)
        return layout.shape, dtype, tuple(stride * size for stride in layout.strides)

    def addresses(self, arrays: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[int], int] | None:
        """As with torch."""
        device, found = arrays[0].data.device_id, []
        for array, (shape, dtype, strides) in zip(arrays, wanted, strict=False):
            data = array.data
            if array.dtype != dtype or array.shape != shape or array.strides != strides or data.device_id != device:
                return None
            found.append(data.ptr)
        return None if reduce(or_, found) % ALIGNMENT else (found, device)

    def device(self) -> int:
        """CuPy's."""
        return int(self._cupy.cuda.runtime.getDevice())

    def stream(self, device: int) -> int:
        """CuPy's current stream."""
        return int(self._cupy.cuda.get_current_stream(device).ptr)

    def empty(self, layout: Layout, device: int) -> Any:
        """From CuPy's pool."""
        return self.maker(layout, device)()

    def zeros(self, layout: Layout, device: int) -> Any:
        """An empty one, filled: what is captured meanwhile fills it too."""
        made = self.empty(layout, device)
        made.fill(0)
        return made

    def maker(self, layout: Layout, device: int) -> Callable[[], Any]:
        """CuPy's pool is that of the current device, which launching has made the right one but for arrays by themselves."""
        cupy = self._cupy
        _refuse_bfloat16(layout)
        size, dtype, nbytes = DType(layout.dtype).itemsize, cupy.dtype(layout.dtype), layout.nbytes
        strides = tuple(stride * size for stride in layout.strides)
        current, allocate, make = cupy.cuda.runtime.getDevice, cupy.cuda.alloc, cupy.ndarray

        def made() -> Any:
            if current() == device:
                return make(layout.shape, dtype=dtype, memptr=allocate(nbytes), strides=strides)
            with cupy.cuda.Device(device):
                return make(layout.shape, dtype=dtype, memptr=allocate(nbytes), strides=strides)

        return made

    def address(self, array: Any) -> int:
        """`data.ptr`."""
        return int(array.data.ptr)

    def memory(self, nbytes: int, device: int) -> Any:
        """From CuPy's pool."""
        with self._cupy.cuda.Device(device):
            return self._cupy.empty(nbytes, dtype="uint8")

    def part(self, memory: Any, offset: int, layout: Layout) -> Any:
        """A view."""
        _refuse_bfloat16(layout)
        size = DType(layout.dtype).itemsize
        strides = tuple(stride * size for stride in layout.strides)
        return self._cupy.ndarray(layout.shape, dtype=layout.dtype, memptr=memory.data + offset, strides=strides)

    def copy(self, target: Any, source: Any) -> None:
        """By assignment."""
        target[...] = source

    def functions(self) -> Any:
        """CuPy's counterparts."""
        return CupyTorch(self._cupy)

    def lend(self, array: Any) -> Any:
        """With the methods of tensors."""
        return Tensor(self._cupy, array)

    def take_back(self, tensor: Any) -> Any:
        """What it wraps."""
        return tensor.data

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        """On a stream of its own, which only the capture uses."""
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


@cache
def torch_library() -> Torch:
    """Torch; it is imported if it is not yet there."""
    return Torch()


@cache
def cupy_library() -> Cupy:
    """CuPy; it is imported if it is not yet there."""
    return Cupy()


_kinds: dict[type, str] = {}  # of types that were met


def _kind(array: Any) -> str:
    """`torch`, `cupy`, `numpy`, or nothing of these."""
    met = _kinds.get(type(array))
    if met is None:
        met = _look_up_kind(array)
        if met:  # a library may yet be imported
            _kinds[type(array)] = met
    return met


def _look_up_kind(array: Any) -> str:
    for module, type_ in (("torch", "Tensor"), ("cupy", "ndarray"), ("numpy", "ndarray")):
        present = sys.modules.get(module)
        if present is not None and isinstance(array, getattr(present, type_)):
            return module
    return ""


_SPOKEN = {"torch": "a torch tensor", "cupy": "a CuPy array", "numpy": "a NumPy array"}


def library_of(arrays: Sequence[Any], what: str, names: Sequence[str]) -> Library | None:
    """The library that all arrays, the `what` of these names, are of; None for NumPy's.

    Raises:
        GraphError: one that is of none, or of another than the first; the message names it.
    """
    kinds = [_kind(array) for array in arrays]
    if not kinds[0] or kinds.count(kinds[0]) != len(kinds):
        for name, array, kind in zip(names, arrays, kinds, strict=True):
            if not kind:
                raise GraphError(f"{what} {name}: got {type(array).__name__}, wanted {', '.join(_SPOKEN.values())}")
            if kind != kinds[0]:
                raise GraphError(
                    f"{what} {name}: got {_SPOKEN[kind]}, but {what} {names[0]} is {_SPOKEN[kinds[0]]}; wanted all of one "
                    "library (NumPy's run on the CPU)"
                )
    match kinds[0]:
        case "torch":
            return torch_library()
        case "cupy":
            return cupy_library()
        case _:
            return None


def any_library() -> Library:
    """Torch if it is installed, else CuPy.

    Raises:
        MirageError: neither is there.
    """
    for make in (torch_library, cupy_library):
        try:
            return make()
        except ImportError:
            continue
    raise MirageError("neither torch nor CuPy is installed; install one of them, say pip install cupy-cuda12x")


__all__ = [
    "ALIGNMENT",
    "Cupy",
    "Layout",
    "Library",
    "Place",
    "Torch",
    "any_library",
    "cupy_library",
    "library_of",
    "torch_library",
]
