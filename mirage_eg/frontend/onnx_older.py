"""Nodes of older opsets: attributes that became inputs, and operators that had another meaning."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mirage_eg.frontend import onnx_elementwise, onnx_layers
from mirage_eg.frontend.onnx_values import Operator, Tensor, Value
from mirage_eg.ir.errors import UnsupportedError

_INPUTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys((*filter(lambda it: it.startswith("Reduce"), onnx_elementwise.OPERATORS), "Squeeze"), ("axes",)),
    "Clip": ("min", "max"),
    "Dropout": ("ratio",),
    "Pad": ("pads", "value"),
    "Reshape": ("shape",),
    "Slice": ("starts", "ends", "axes"),
    "Split": ("split",),
    "TopK": ("k",),
    "Unsqueeze": ("axes",),
}
"""Attributes of older opsets that are inputs in later ones, in the order of these inputs after the first."""


def with_inputs(op: str, operands: Sequence[Value], attributes: Mapping[str, Any]) -> tuple[list[Value], dict[str, Any]]:
    """The operands and attributes of a node as in later opsets."""
    names = _INPUTS.get(op, ())
    if attributes.keys().isdisjoint(names):
        return list(operands), dict(attributes)
    values = [attributes.get(name) for name in names]
    arrays = [it if it is None else np.array(it, np.float32 if isinstance(it, float) else np.int64) for it in values]
    return [operands[0], *arrays], {name: it for name, it in attributes.items() if name not in names}


def _along_axis(function: Operator, x: Tensor, y: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Any:
    """A function of two operands; the dims of the second are those of the first from an axis on, if there is one."""
    if axis is not None and broadcast:
        y = y.reshape([*y.shape, *[1] * (x.ndim - axis % x.ndim - y.ndim)])
    return function(x, y)


def _of_rows(function: Operator, x: Tensor, *, axis: int = 1) -> Any:
    """A function along one axis, for which all dims from the axis on are one."""
    rows = x.shape[: axis % max(x.ndim, 1)].numel()
    return function(x.reshape(rows, -1), axis=-1).reshape(x.shape)


def _p_relu(x: Tensor, slope: Tensor) -> Any:
    """One slope for each channel."""
    return onnx_elementwise.OPERATORS["PRelu"](x, slope.reshape([-1, *[1] * (x.ndim - 2)]) if slope.ndim == 1 else slope)


def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float = 1e-5, is_test: int = 0
) -> Any:
    if not is_test:
        raise UnsupportedError("is_test = 0 is not supported")
    return onnx_layers.OPERATORS["BatchNormalization"](x, scale, bias, mean, variance, epsilon=epsilon)


_OF_TWO = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater", "Pow")
OPERATORS: Mapping[str, tuple[int, Operator]] = {
    **{name: (7, partial(_along_axis, onnx_elementwise.OPERATORS[name])) for name in _OF_TWO},
    **{name: (13, partial(_of_rows, onnx_layers.OPERATORS[name])) for name in ("Softmax", "LogSoftmax")},
    "Hardmax": (13, partial(_of_rows, onnx_elementwise.OPERATORS["Hardmax"])),
    "BatchNormalization": (7, _batch_norm),
    "PRelu": (7, _p_relu),
}
"""Operators that once had another meaning, with the opset before which they have it."""
