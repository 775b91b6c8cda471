"""ONNX's linear quantization as functions of torch; rounding to whole numbers stays with an evaluator."""

from collections.abc import Mapping
from typing import Any

from mirage_eg.frontend.onnx_values import Operator, Tensor, torch_type
from mirage_eg.ir.errors import UnsupportedError


def _dequantize(
    x: Tensor, scale: Tensor, zero: Tensor = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Any:
    """(x − zero) · scale, where the scale has one number, one for each index of an axis, or one for each block of it."""
    dtype = torch_type(output_dtype) if output_dtype else scale.dtype
    if scale.numel() == 1 or (not block_size and scale.ndim == 1):
        rank = 0 if scale.numel() == 1 else x.ndim - 1 - axis % x.ndim
        scale, zero = (it if it is None else it.reshape([-1, *[1] * rank] if it.numel() > 1 else []) for it in (scale, zero))
    elif block_size:
        scale, zero = (
            it if it is None else it.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis]) for it in (scale, zero)
        )
    else:
        raise UnsupportedError(f"scales of shape {list(scale.shape)}, wanted one, one for each index of an axis, or blocks")
    difference = x.to(scale.dtype) if zero is None else x.to(scale.dtype) - zero.to(scale.dtype)
    return (difference * scale).to(dtype)


OPERATORS: Mapping[str, Operator] = {"DequantizeLinear": _dequantize}
