"""Argument checks of a program: shapes, types, strides, devices and alignment of its arrays, with a message for each fault.

A call first runs the library's fast check, one pass over all arrays that accepts exactly the expected ones. Only if it fails,
the slow check examines each array, accepts permitted differences (strides of dims of extent 1), and names the fault.
"""

from collections.abc import Sequence
from typing import Any

from mirage_eg.backends.runtime.array_library import ArrayLayout, ArrayLocation, Check, Library
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.errors import GraphError


class ArgumentChecker:
    """The checks of a program's inputs and of the caller's output buffers."""

    def __init__(self, names: Sequence[str], inputs: Sequence[ArrayLayout], outputs: Sequence[ArrayLayout]) -> None:
        """`names` are the names of the inputs in messages."""
        self._layouts = (*inputs, *outputs)
        self._names = [f"argument {name}" for name in names] + [f"out {layout.name}" for layout in outputs]
        sizes = [layout.nbytes for layout in self._layouts]
        # An output buffer must overlap no other array, which kernels may read after they write the buffer.
        pairs = [(buffer, other) for buffer in range(len(inputs), len(sizes)) for other in range(buffer)]
        self._disjoint = [(buffer, other, -sizes[other], sizes[buffer]) for buffer, other in pairs]
        self._checks: dict[str, Check] = {}  # by library

    def check(self, arrays: Sequence[Any], library: Library, out: Sequence[Any] | None = None) -> tuple[list[int], int]:
        """The addresses of the arrays, then of the buffers, and the device that has them all.

        Raises GraphError: an array that does not fit; the message names it.
        """
        given = arrays if out is None else (*arrays, *out)
        check = self._checks.get(library.name)
        if check is None:
            check = self._checks[library.name] = library.checker(self._layouts)
        found = check(given) or self.check_slow(given, library)
        if out is not None:
            addresses = found[0]
            for buffer, other, before, size in self._disjoint:
                if before < addresses[other] - addresses[buffer] < size:
                    raise GraphError(
                        f"{self._names[buffer]}: shares memory with {self._names[other]}; wanted a buffer of its own"
                    )
        return found

    def check_slow(self, arrays: Sequence[Any], library: Library) -> tuple[list[int], int]:
        """As `check`, array by array, with messages."""
        locations: list[ArrayLocation] = []
        for array, wanted, what in zip(arrays, self._layouts, self._names, strict=False):  # fewer arrays without `out`
            location = check_array(library, array, wanted, what)
            if locations and location.device != locations[0].device:
                first = locations[0].device
                raise GraphError(
                    f"{what}: got device {location.device}, but {self._names[0]} is on device {first}; wanted all on one"
                )
            locations.append(location)
        device = locations[0].device
        assert device is not None
        return [location.pointer for location in locations], device


def check_array(library: Library, array: Any, wanted: ArrayLayout, what: str) -> ArrayLocation:
    """The location of the array named `what`. Raises GraphError: the array does not fit."""
    location = library.locate(array, what)
    device, shape, dtype, strides, pointer = location
    if shape != wanted.shape:
        raise GraphError(f"{what}: got shape {tuple(shape)}, wanted {wanted.shape}")
    if dtype != wanted.dtype:
        raise GraphError(f"{what}: got {dtype}, wanted {wanted.dtype}")
    if device is None:
        raise GraphError(f"{what}: got a {library.name} on the CPU, wanted one on a CUDA device (NumPy arrays run on the CPU)")
    if strides != wanted.strides and any(
        have != want and extent > 1 for have, want, extent in zip(strides, wanted.strides, wanted.shape, strict=True)
    ):
        raise GraphError(f"{what}: got strides {tuple(strides)}, wanted {wanted.strides} (in elements); {_hint(wanted)}")
    if pointer % ALIGNMENT:
        raise GraphError(
            f"{what}: its address is no multiple of {ALIGNMENT} bytes (is it a slice?); wanted an aligned array: copy it"
        )
    return location


def _hint(wanted: ArrayLayout) -> str:
    if wanted.is_dense:
        return "make it contiguous first (torch: x.contiguous(), CuPy: cupy.ascontiguousarray(x))"
    return "copy it into an array of these strides first (torch: torch.empty_strided)"
