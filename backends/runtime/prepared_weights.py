"""What a program prepares of its weights, for arrays of either library: by torch, once for weights that stay the same."""

from collections.abc import Sequence
from threading import Lock
from types import ModuleType
from typing import Any

from mirage_eg.backends.runtime.array_library import Library
from mirage_eg.backends.runtime.cupy_arrays import Cupy
from mirage_eg.ir.errors import MirageError


class PreparedWeights:
    """The results of a program's `prepare`, kept as the program says (`triton.prepared_weights`).

    CuPy has no counter of changes in place: its weights are known by their addresses.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module, self._lock = module, Lock()
        self._of_cupy: tuple[list[int], list[Any]] = [], []  # addresses of the last weights, and the results

    def __call__(self, arrays: Sequence[Any], library: Library) -> Sequence[Any]:
        """The results for the arrays of a call. Raises MirageError: CuPy arrays without torch."""
        weights = [arrays[place] for place in self._module.WEIGHTS]
        with self._lock:
            if not isinstance(library, Cupy):
                results: Sequence[Any] = self._module.prepared(*weights)
                return results
            addresses = [library.address(weight) for weight in weights]
            if addresses != self._of_cupy[0]:
                self._of_cupy = addresses, self._by_torch(weights, library)
            return self._of_cupy[1]

    def _by_torch(self, weights: Sequence[Any], library: Cupy) -> list[Any]:
        try:
            tensors = library.to_torch(weights)
        except ImportError:
            raise MirageError("this program computes functions of weights by torch; install torch") from None
        return library.from_torch(self._module.prepared(*tensors))
