"""ONNX's operators whose results are known at import: constants, ranges and shapes, as functions with NumPy results."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from mirage_eg.frontend.onnx_values import Operator, Value, element_type, known
from mirage_eg.ir.errors import UnsupportedError


def _constant(
    *,
    value: Any = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Any:
    if value_string is not None or value_strings is not None:
        return np.array(value_strings if value_string is None else value_string, object)

    if value is not None:
        return numpy_helper.to_array(value)
    floats, ints = (one if one is not None else many for one, many in ((value_float, value_floats), (value_int, value_ints)))
    return np.asarray(floats, np.float32) if floats is not None else np.asarray(ints, np.int64)


def _constant_of_shape(shape: Value, *, value: Any = None) -> Any:
    filling = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    return np.broadcast_to(filling.reshape(()), known("shape", shape)).copy()


def _eye_like(x: Value, *, dtype: int = 0, k: int = 0) -> Any:
    rows, columns = x.shape
    return np.eye(rows, columns, k, helper.tensor_dtype_to_np_dtype(dtype or element_type(x)))


def _range(start: Value, limit: Value, delta: Value) -> Any:
    bounds = (known(name, value) for name, value in (("start", start), ("limit", limit), ("delta", delta)))
    return np.arange(*(np.asarray(bound).item() for bound in bounds), dtype=start.dtype)


def _extents(x: Value) -> list[int]:
    if not all(isinstance(extent, int) for extent in x.shape):
        raise UnsupportedError(f"got the symbolic shape {list(x.shape)}, wanted fixed extents")
    return list(x.shape)


CONSTANTS: Mapping[str, Operator] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Range": _range,
    "Shape": lambda x, *, start=0, end=None: np.array(_extents(x)[start:end], np.int64),
    "Size": lambda x: np.array(np.prod(_extents(x), dtype=np.int64)),
}
