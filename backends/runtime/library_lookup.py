"""The array library of an array. No library is imported here: the caller of an array has imported its library."""

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from mirage_eg.backends.runtime.array_library import Library
from mirage_eg.backends.runtime.cupy_arrays import Cupy
from mirage_eg.backends.runtime.torch_arrays import Torch
from mirage_eg.ir.errors import GraphError, MirageError


@cache
def torch_library() -> Torch:
    """Torch, imported if necessary."""
    return Torch()


@cache
def cupy_library() -> Cupy:
    """CuPy, imported if necessary."""
    return Cupy()


_library_of_type: dict[type, Library] = {}  # saves a µs a call: array types seen before


def library_of(arrays: Sequence[Any], what: str, names: Sequence[str]) -> Library | None:
    """The common library of all arrays, the `what` of these names; None for NumPy.

    Raises GraphError: an array of no library, or of another one than the first array; the message names it.
    """
    library = _library_of_type.get(type(arrays[0]))
    for array in arrays:
        if library is None or _library_of_type.get(type(array)) is not library:
            return _check_slow(arrays, what, names)
    return library


_KINDS = {"torch": "a torch tensor", "cupy": "a CuPy array", "numpy": "a NumPy array"}


def _check_slow(arrays: Sequence[Any], what: str, names: Sequence[str]) -> Library | None:
    kinds = [_kind(array) for array in arrays]
    for name, array, kind in zip(names, arrays, kinds, strict=True):
        if not kind:
            raise GraphError(f"{what} {name}: got {type(array).__name__}, wanted {', '.join(_KINDS.values())}")
        if kind != kinds[0]:
            raise GraphError(
                f"{what} {name}: got {_KINDS[kind]}, but {what} {names[0]} is {_KINDS[kinds[0]]}; wanted all of one "
                "library (NumPy's run on the CPU)"
            )
    if kinds[0] == "numpy":
        return None
    library: Library = torch_library() if kinds[0] == "torch" else cupy_library()
    _library_of_type.update((type(array), library) for array in arrays)
    return library


def _kind(array: Any) -> str:
    """`torch`, `cupy`, `numpy`, or an empty text."""
    for module, type_ in (("torch", "Tensor"), ("cupy", "ndarray"), ("numpy", "ndarray")):
        present = sys.modules.get(module)
        if present is not None and isinstance(array, getattr(present, type_)):
            return module
    return ""


def any_library() -> Library:
    """Torch if it is installed, else CuPy. Raises MirageError: neither is installed."""
    for make in (torch_library, cupy_library):
        try:
            return make()
        except ImportError:
            continue
    raise MirageError("neither torch nor CuPy is installed; install one of them, say pip install cupy-cuda12x")
