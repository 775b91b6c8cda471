"""The border of a running program: its arrays are told from others, and what is wrong with another is said.

A call asks the library first, in one pass over all arrays, whether they are just right; only where they are not is each looked
at closely, with all that may differ and still be right.
"""

from collections.abc import Sequence
from typing import Any

from mirage_eg.backends.runtime.array_library import ALIGNMENT, ArrayLayout, ArrayLocation, Check, Library
from mirage_eg.ir.errors import GraphError


class ArgumentChecker:
    """What a program takes: its inputs, and buffers for its outputs."""

    def __init__(self, names: Sequence[str], inputs: Sequence[ArrayLayout], outputs: Sequence[ArrayLayout]) -> None:
        """`names` are those by which errors call the inputs."""
        self._layouts = (*inputs, *outputs)
        self._called = [f"argument {name}" for name in names] + [f"out {layout.name}" for layout in outputs]
        sizes = [layout.nbytes for layout in self._layouts]
        # What is written must not lie over anything: it would be read after it was written.
        pairs = [(buffer, other) for buffer in range(len(inputs), len(sizes)) for other in range(buffer)]
        self._apart = [(buffer, other, -sizes[other], sizes[buffer]) for buffer, other in pairs]
        self._checks: dict[str, Check] = {}  # by library

    def check(self, arrays: Sequence[Any], library: Library, out: Sequence[Any] | None = None) -> tuple[list[int], int]:
        """The addresses of the arrays, then of the buffers, and the device that has them all.

        Raises:
            GraphError: one that the program does not take; the message names it.
        """
        known = arrays if out is None else (*arrays, *out)
        check = self._checks.get(library.name)
        if check is None:
            check = self._checks[library.name] = library.checker(self._layouts)
        found = check(known) or self.check_slow(known, library)
        if out is not None:
            addresses = found[0]
            for buffer, other, before, size in self._apart:
                if before < addresses[other] - addresses[buffer] < size:
                    raise GraphError(
                        f"{self._called[buffer]}: shares memory with {self._called[other]}; wanted a buffer of its own"
                    )
        return found

    def check_slow(self, arrays: Sequence[Any], library: Library) -> tuple[list[int], int]:
        """What `check` gives, array by array; raises what it raises."""
        places: list[ArrayLocation] = []
        for array, wanted, what in zip(arrays, self._layouts, self._called, strict=False):  # no buffers: theirs are left over
            place = look(library, array, wanted, what)
            if places and place.device != places[0].device:
                first = places[0].device
                raise GraphError(
                    f"{what}: got device {place.device}, but {self._called[0]} is on device {first}; wanted all on one"
                )
            places.append(place)
        device = places[0].device
        assert device is not None
        return [place.pointer for place in places], device


def look(library: Library, array: Any, wanted: ArrayLayout, what: str) -> ArrayLocation:
    """Where the array called `what` is.

    Raises:
        GraphError: it is not as wanted.
    """
    place = library.place(array, what)
    device, shape, dtype, strides, pointer = place
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
            f"{what}: its address is no multiple of {ALIGNMENT} bytes, as that of a slice may be; wanted an array that "
            "starts where its memory does: copy it"
        )
    return place


def _hint(wanted: ArrayLayout) -> str:
    if wanted.is_dense:
        return "make it contiguous first (torch: x.contiguous(), CuPy: cupy.ascontiguousarray(x))"
    return "copy it into an array of these strides first (torch: torch.empty_strided)"


__all__ = ["ArgumentChecker", "look"]
