"""ONNX's linear quantization as functions of torch; that to other types than bytes stays with an evaluator."""

from collections.abc import Mapping
from typing import Any

import torch

from mirage_eg.frontend.onnx_values import Operator, Tensor, torch_type
from mirage_eg.ir.errors import UnsupportedError


def _aligned(x: Tensor, given: Tensor, axis: int, block_size: int) -> Any:
    """Scales or zero points in a shape that broadcasts: one, one for each index of an axis, or one for each block of it."""
    if given is None or given.numel() == 1:
        return given if given is None else given.reshape([])
    if block_size:
        return given.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    if given.ndim > 1:
        raise UnsupportedError(f"scales of shape {list(given.shape)}, wanted one, one for each index of an axis, or blocks")
    return given.reshape([-1, *[1] * (x.ndim - 1 - axis % x.ndim)])


def _dequantize(
    x: Tensor, scale: Tensor, zero: Tensor = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Any:
    """(x − zero) · scale."""
    dtype = torch_type(output_dtype) if output_dtype else scale.dtype
    scale, zero = (_aligned(x, it, axis, block_size) for it in (scale, zero))
    difference = x.to(scale.dtype) if zero is None else x.to(scale.dtype) - zero.to(scale.dtype)
    return (difference * scale).to(dtype)


def _quantize(
    x: Tensor, scale: Tensor, zero: Tensor = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Any:
    """The whole number nearest to x / scale, of two the even one, plus zero, within the range of its type."""
    dtype = zero.dtype if zero is not None else torch_type(output_dtype) if output_dtype else torch.uint8
    if dtype not in (torch.int8, torch.uint8):
        raise UnsupportedError(f"whole numbers of {dtype}, wanted int8 or uint8")
    scale, zero = (_aligned(x, it, axis, block_size) for it in (scale, zero))
    nearest = torch.round(x / (scale.to(x.dtype) if x.is_floating_point() else scale))
    nearest = nearest if zero is None else nearest + zero.to(nearest.dtype)
    return nearest.clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max).to(dtype)


OPERATORS: Mapping[str, Operator] = {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}
