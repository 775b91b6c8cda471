"""Values of ONNX nodes: torch tensors, and NumPy arrays that are known at import."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mirage_eg.ir.errors import UnsupportedError

Value = Any  # a torch.Tensor, or a NumPy array that is known at import
Operator = Callable[..., Any]
"""An operator as a function of torch: parameters are a node's inputs, keywords its attributes with their defaults."""


def known(name: str, value: Value) -> Any:
    """A NumPy array of whole numbers or numbers that must be known at import, as Python's lists and numbers.

    Raises:
        UnsupportedError: it is computed from the model's inputs.
    """
    import torch

    on_host = type(value) is torch.Tensor and value.device.type == "cpu"  # of a node that is computed at import
    if value is not None and not isinstance(value, np.ndarray) and not on_host:
        raise UnsupportedError(f"{name} depends on the model's inputs, wanted a constant")
    return None if value is None else value.tolist()


def tensor(value: Value, like: Any = None) -> Any:
    """A value as a torch tensor, on the device of another."""
    import torch

    if not isinstance(value, np.ndarray):
        return value
    bfloat16 = value.dtype.name == "bfloat16"
    given = torch.from_numpy(np.array(value.view(np.int16) if bfloat16 else value))
    given = given.view(torch.bfloat16) if bfloat16 else given
    return given if like is None else given.to(like.device)


def array(value: Any) -> Any:
    """A tensor on the CPU as a NumPy array, one of bfloat16 with the type of ml_dtypes; others than tensors as they are."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype is torch.bfloat16:
        from ml_dtypes import bfloat16

        return value.view(torch.int16).numpy().view(bfloat16)
    return value.numpy()


def operand(value: Value, other: Value) -> Any:
    """A known array of one element as a number, which has the type of the other operand; else a tensor."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.ndim <= other.ndim:
        return value.item()
    return tensor(value, other)


def torch_type(number: int) -> Any:
    """The element type of torch for one of ONNX, by its number.

    Raises:
        UnsupportedError: torch has no such type.
    """
    import torch
    from onnx import TensorProto, helper

    if number == TensorProto.BFLOAT16:
        return torch.bfloat16
    name = str(helper.tensor_dtype_to_np_dtype(number))
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedError(f"element type {TensorProto.DataType.Name(number)} is not supported")
    return found


__all__ = ["Operator", "Value", "array", "known", "operand", "tensor", "torch_type"]
