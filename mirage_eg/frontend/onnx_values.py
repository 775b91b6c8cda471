"""Values of ONNX nodes: torch tensors, and NumPy arrays that are known at import.

An *ordinary* element type is one in which torch computes. A known array of another type has its numbers in a *carrier*, an
ordinary type that holds them exactly.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np

from mirage_eg.ir.errors import UnsupportedError


class MisfitError(UnsupportedError):
    """Operands of values, shapes or types that an operator's function does not take."""


Value = Any  # a torch.Tensor, or a NumPy array that is known at import
Operator = Callable[..., Any]
"""An operator as a function of torch: parameters are a node's inputs, keywords its attributes with their defaults."""


Tensor = Annotated[Any, "a torch.Tensor"]
"""The annotation of a parameter that is a tensor also where its value is known."""


def of_tensors(function: Operator) -> Operator:
    """A function all of whose operands are tensors; its keywords are attributes."""
    parameters = inspect.signature(function).parameters.values()
    function.__annotations__ = {it.name: Tensor for it in parameters if it.kind is not it.KEYWORD_ONLY}
    return function


ORDINARY = frozenset(["float16", "bfloat16", "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8"])
"""The element types in which torch computes, by their names in NumPy and torch."""

_CARRIERS = {
    "int2": "int8",
    "int4": "int8",
    "uint2": "uint8",
    "uint4": "uint8",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
    **dict.fromkeys(("float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz"), "float32"),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), "float32"),
}
_TORCH: Mapping[str, str] = {
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "DOUBLE": "float64",
    "BOOL": "bool",
    **{name.upper(): name for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")},
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
}
_BITS = {1: "int8", 2: "int16"}  # of a type that NumPy has from ml_dtypes: both sides see its bits


def known(name: str, value: Value) -> Any:
    """A NumPy array of whole numbers or numbers that must be known at import, as Python's lists and numbers.

    Raises UnsupportedError: it is computed from the model's inputs.
    """
    import torch

    on_host = type(value) is torch.Tensor and value.device.type == "cpu"  # of a node that is computed at import
    if value is not None and not isinstance(value, np.ndarray) and not on_host:
        raise UnsupportedError(f"{name} depends on the model's inputs, wanted a constant")
    return None if value is None else value.tolist()


def tensor(value: Value, like: Any = None) -> Any:
    """A value as a torch tensor, on the device of another. Raises UnsupportedError: torch has no such element type."""
    import torch

    if not isinstance(value, np.ndarray):
        return value
    name = value.dtype.name
    if not is_torchs(value):
        raise UnsupportedError(f"the element type {name} is not supported")
    own = name != "bfloat16" and not name.startswith("float8")
    given = torch.from_numpy(np.array(value if own else value.view(_BITS[value.dtype.itemsize])))
    given = given if own else given.view(getattr(torch, name))
    return given if like is None else given.to(like.device)


def is_torchs(value: Value) -> bool:
    """Whether a value is a tensor of torch, or an array that can be one."""
    import torch

    return not isinstance(value, np.ndarray) or (value.dtype.name in _TORCH.values() and hasattr(torch, value.dtype.name))


def array(value: Any) -> Any:
    """A tensor as a NumPy array, of a type of ml_dtypes where NumPy has none; others than tensors as they are."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    name = str(value.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        bits = value.contiguous().view(torch.int16 if value.element_size() == 2 else torch.int8)
        return bits.numpy().view(getattr(ml_dtypes, name))
    return value.numpy()


def carried(value: Value) -> Value:
    """A known array in an ordinary type that holds its numbers. Raises UnsupportedError: no ordinary type does."""
    if not isinstance(value, np.ndarray) or value.dtype.name in ORDINARY:
        return value
    carrier = _CARRIERS.get(value.dtype.name)
    if carrier is None or (value.dtype == np.uint64 and value.size and value.max() > np.iinfo(np.int64).max):
        raise UnsupportedError(f"torch does not compute with the element type {value.dtype.name}")
    return value.astype(carrier)


def is_ordinary(value: Value) -> bool:
    """Whether torch computes with a value's element type."""
    return value is None or str(value.dtype).removeprefix("torch.") in ORDINARY


def operand(value: Value, other: Value) -> Any:
    """A known array of one element as a number, which has the type of the other operand; else a tensor."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.ndim <= other.ndim:
        return value.item()
    return tensor(value, other)


def torch_type(number: int) -> Any:
    """The element type of torch for one of ONNX, by its number. Raises UnsupportedError: torch has no such type."""
    import torch
    from onnx import TensorProto

    name = TensorProto.DataType.Name(number)
    found = getattr(torch, _TORCH.get(name, ""), None)
    if found is None:
        raise UnsupportedError(f"element type {name} is not supported")
    return found


def element_type(value: Value) -> int:
    """The number of ONNX's element type of a value."""
    from onnx import TensorProto, helper

    if isinstance(value, np.ndarray):
        return int(helper.np_dtype_to_tensor_dtype(value.dtype))
    name = str(value.dtype).removeprefix("torch.")
    number: int = TensorProto.DataType.Value(next(own for own, torchs in _TORCH.items() if torchs == name))
    return number
