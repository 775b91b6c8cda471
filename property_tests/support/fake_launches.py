"""Counts what a GPU would be asked to do: arrays that note each computation (a launch) and each look at a number (a wait)."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from property_tests.support.fake_cupy import FakeCupy

LAUNCHES: Counter[str] = Counter()
"""Kernels that CuPy would launch, by name, and `wait` for each time that Python waits for one."""


class Counted(np.ndarray[Any, Any]):
    """An array that is counted by: views are free, computations and copies are launches, conversions to Python wait."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if ufunc is np.matmul:
            _count_what_a_product_needs(*map(np.asarray, inputs))
        LAUNCHES[
            "matmul" if ufunc is np.matmul else f"{ufunc.__name__}.{method}" if method != "__call__" else ufunc.__name__
        ] += 1
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        if out is not None:
            kwargs["out"] = tuple(np.asarray(x) for x in out)
        result = getattr(ufunc, method)(*plain, **kwargs)
        return out[0] if out is not None else counted(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, kwargs: Any) -> Any:
        result = super().__array_function__(function, types, arguments, kwargs)
        return counted(result) if isinstance(result, np.ndarray | np.generic) else result

    def _copied(self, result: Any, what: str) -> Any:
        if not np.shares_memory(result, self):
            LAUNCHES[what] += 1
        return counted(result)

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        return self._copied(np.asarray(self).reshape(*shape, **kwargs), "copy")

    def astype(self, dtype: Any, **kwargs: Any) -> Any:
        return self._copied(np.asarray(self).astype(dtype, **kwargs), "astype")

    def copy(self, order: Any = "C") -> Any:
        return self._copied(np.asarray(self).copy(order), "copy")

    def __getitem__(self, index: Any) -> Any:
        return self._copied(np.asarray(self)[index], "index")

    def __bool__(self) -> bool:
        LAUNCHES["wait"] += 1
        return bool(np.asarray(self))

    def __float__(self) -> float:
        LAUNCHES["wait"] += 1
        return float(np.asarray(self))

    def __int__(self) -> int:
        LAUNCHES["wait"] += 1
        return int(np.asarray(self))


def _count_what_a_product_needs(x: np.ndarray, y: np.ndarray) -> None:
    """CuPy copies operands of a stack of products that are not contiguous.

    Where one of them is broadcast it lists pointers: a launch for each dim of the stack, for each operand and for the result.
    """
    stack = max(x.ndim, y.ndim) - 2
    if stack == 0:
        return
    LAUNCHES["copy"] += (not x.flags.c_contiguous) + (not y.flags.c_contiguous)
    leads = [(*[1] * (stack + 2 - side.ndim), *side.shape[:-2]) for side in (x, y)]
    if leads[0] != leads[1]:
        LAUNCHES["cupy_mat_ptrs"] += 3 * stack


def counted(x: Any) -> Any:
    """x as an array that is counted; numbers become arrays without dims, as CuPy has them."""
    return np.asarray(x).view(Counted)


class CountingCupy(FakeCupy):
    """A `FakeCupy` whose arrays count too; `launches` is LAUNCHES."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.launches = LAUNCHES

    def asarray(self, x: Any) -> Any:
        return counted(x)

    def ElementwiseKernel(self, parameters: str, result: str, operation: str, name: str, preamble: str) -> Any:
        kernel = super().ElementwiseKernel(parameters, result, operation, name, preamble)
        return lambda *given: counted(kernel(*map(np.asarray, given)))

    def ReductionKernel(self, *arguments: str, **named: str) -> Any:
        kernel = super().ReductionKernel(*arguments, **named)
        return lambda x, *constants, **how: counted(kernel(np.asarray(x), *constants, **how))
