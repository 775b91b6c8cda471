"""The part of the CUDA driver that launching needs: load compiled kernels, launch functions on streams.

Called through ctypes: Triton's own launcher needs torch in the process (before 3.9), or without torch uses only the default
stream. A kernel that Triton compiles takes its pointers, then those of its scratch memory and a profiler's.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NoReturn, Protocol

from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.shapes import Shape

_SHARED_OPTIN, _MAJOR, _MINOR = 97, 75, 76  # CU_DEVICE_ATTRIBUTE_…
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_PORTABLE_CLUSTER = 8  # thread blocks
_DEFAULT_SHARED = 48 << 10  # of a block without an attribute
_DEPENDENT = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuStreamGetId": (c_void_p, POINTER(c_uint64)),
    "cuLaunchKernelEx": (c_void_p,) * 4,
}


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((f"{what}_{dim}", c_uint) for what in ("grid", "block") for dim in "xyz"),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute with a value that is an int; a value has 64 bytes."""

    _fields_ = (("id", c_uint), ("padding", c_uint), ("value", c_int), ("rest", c_int * 15))


LaunchCall = Callable[[], int]  # launches a kernel on a stream; returns the driver's status, 0 for success


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel on a device; a `dependent` one may start while the one before it on the stream ends, and waits for it.

    Each block of its grid is a cluster of so many thread blocks.
    """

    handle: int
    threads: int
    shared: int
    dependent: bool = False
    cluster: int = 1


class Driver(Protocol):
    """A driver for compiled kernels; functions, streams and contexts are handles, devices have CUDA's numbers."""

    def describe(self, device: int) -> tuple[int, int]:
        """The compute capability (90 for 9.0), and the bytes of shared memory that a block may have."""

    def load(self, device: int, name: str, image: bytes, shared: int, cluster: int = 1) -> int:
        """The function of a compiled kernel on a device, whose clusters have so many thread blocks."""

    def enter(self, device: int) -> bool:
        """Make the device's context current; returns whether `leave` must be called."""

    def leave(self) -> None:
        """Make the previous context current again."""

    def identify(self, stream: int) -> int:
        """The unique number of a stream in the process; a handle may be reused after its stream is destroyed."""

    def capturing(self, stream: int) -> bool:
        """Whether launches on the stream are captured in a CUDA graph."""

    def prepare(self, function: Function, grid: Shape, stream: int, parameters: "ctypes.Array[Any]") -> LaunchCall:
        """A function that launches a kernel; `parameters` are the addresses of its arguments."""

    def refuse(self, status: int) -> NoReturn:
        """Raise a MirageError for the status of a launch."""


class CudaDriver:
    """libcuda; its handles live as long as the process."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise MirageError("no NVIDIA driver (libcuda.so.1) on this machine; NumPy arrays run on the CPU") from None
        try:
            self._functions = {name: getattr(library, name) for name in _SIGNATURES}
        except AttributeError as error:
            raise MirageError(f"the NVIDIA driver is too old: {error}; wanted one for CUDA 12 or later") from None
        for name, types in _SIGNATURES.items():
            self._functions[name].argtypes = types
        # The functions of every launch have no declared types: conversion takes longer than the call.
        self._launch, self._current = library["cuLaunchKernelEx"], library["cuCtxGetCurrent"]
        self._capturing, self._identify = library["cuStreamIsCapturing"], library["cuStreamGetId"]
        self._contexts: dict[int, int] = {}
        self._call("cuInit", 0)

    def describe(self, device: int) -> tuple[int, int]:
        """By the driver's attributes."""
        number, values = self._device(device), []
        for attribute in (_MAJOR, _MINOR, _SHARED_OPTIN):
            value = c_int()
            self._call("cuDeviceGetAttribute", byref(value), attribute, number)
            values.append(value.value)
        major, minor, shared = values
        return 10 * major + minor, shared

    def load(self, device: int, name: str, image: bytes, shared: int, cluster: int = 1) -> int:
        """Into the primary context of the device, which torch and CuPy use."""
        module, function = c_void_p(), c_void_p()
        entered = self.enter(device)
        try:
            self._call("cuModuleLoadData", byref(module), image)
            self._call("cuModuleGetFunction", byref(function), module, name.encode())
            if shared > _DEFAULT_SHARED:
                self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
            if cluster > _PORTABLE_CLUSTER:
                self._call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
        finally:
            if entered:
                self.leave()
        assert function.value is not None
        return function.value

    def enter(self, device: int) -> bool:
        """Push the device's primary context, unless it is the current one."""
        context = self._contexts.get(device) or self._retain(device)
        current = c_void_p()
        if status := self._current(byref(current)):
            self._refuse("cuCtxGetCurrent", status)
        if current.value == context:
            return False
        self._call("cuCtxPushCurrent_v2", context)
        return True

    def leave(self) -> None:
        """Pop it."""
        self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def identify(self, stream: int) -> int:
        """CUDA's number of the stream, in the current context; the default stream always exists."""
        if stream == 0:
            return -1
        number = c_uint64()
        if status := self._identify(c_void_p(stream), byref(number)):
            self._refuse("cuStreamGetId", status)
        return number.value

    def capturing(self, stream: int) -> bool:
        """The default stream is never captured."""
        if stream == 0:
            return False
        capturing = c_int()
        if status := self._capturing(c_void_p(stream), byref(capturing)):
            self._refuse("cuStreamIsCapturing", status)
        return capturing.value != 0

    def prepare(self, function: Function, grid: Shape, stream: int, parameters: "ctypes.Array[Any]") -> LaunchCall:
        """Blocks are one-dimensional; arguments are converted here, which costs more than the launch itself."""
        x, y, z = grid
        config = _LaunchConfig(x * function.cluster, y, z, function.threads, 1, 1, function.shared, stream, None, 0)
        dependent, cluster = _LaunchAttribute(_DEPENDENT, 0, 1), _LaunchAttribute(_CLUSTER, 0, function.cluster)
        cluster.rest[:2] = 1, 1
        wanted = [dependent] * function.dependent + [cluster] * (function.cluster > 1)
        attributes = (_LaunchAttribute * len(wanted))(*wanted)
        config.attributes, config.attribute_count = ctypes.addressof(attributes) if wanted else None, len(wanted)
        launch = partial(self._launch, byref(config), c_void_p(function.handle), parameters, None)
        launch.attributes = attributes  # type: ignore[attr-defined]  # live as long
        return launch

    def refuse(self, status: int) -> NoReturn:
        """With the driver's message."""
        self._refuse("cuLaunchKernelEx", status)

    def _device(self, device: int) -> int:
        number = c_int()
        self._call("cuDeviceGet", byref(number), device)
        return number.value

    def _retain(self, device: int) -> int:
        """The primary context of a device."""
        retained = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(retained), self._device(device))
        assert retained.value is not None
        self._contexts[device] = retained.value
        return retained.value

    def _call(self, name: str, *arguments: Any) -> None:
        if status := self._functions[name](*arguments):
            self._refuse(name, status)

    def _refuse(self, name: str, status: int) -> NoReturn:
        text = c_char_p()
        self._functions["cuGetErrorString"](status, byref(text))
        raise MirageError(f"the CUDA driver: {name}: {(text.value or b'unknown error').decode()} (error {status})")


@cache
def cuda_driver() -> CudaDriver:
    """The driver of this machine. Raises MirageError: this machine has none."""
    return CudaDriver()
