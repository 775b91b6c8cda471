"""ONNX's elementwise operators and reductions as functions of torch."""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from mirage_eg.frontend.onnx_values import Operator, Tensor, Value, known, of_tensors, operand, tensor


def _unary(module: Any, name: str) -> Operator:
    """The function of a module of torch with one operand and this name."""
    return of_tensors(lambda x: getattr(module, name)(x))


def _binary(name: str, x: Value, y: Value) -> Any:
    if isinstance(x, np.ndarray) and isinstance(operand(x, y), int | float):  # the first operand is a tensor in torch
        x = torch.tensor(x.item(), dtype=y.dtype, device=y.device)
    return getattr(torch, name)(tensor(x, y), operand(y, x))


def _divide(x: Value, y: Value) -> Any:
    """Whole numbers are divided toward 0."""
    x = tensor(x, y)
    return torch.div(x, operand(y, x), rounding_mode=None if x.is_floating_point() else "trunc")


def _joined(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    """A function of any number of operands, two by two."""

    def pair(x: Value, y: Value) -> Any:
        return function(tensor(x, y), tensor(y, x))

    return lambda *operands: reduce(pair, operands)


def _clip(x: Tensor, low: Value = None, high: Value = None) -> Any:
    if low is None and high is None:
        return x
    return torch.clamp(x, known("min", low), known("max", high))


def _hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return (x * alpha + beta).clamp(0, 1)


def _p_relu(x: Tensor, slope: Value) -> Any:
    return torch.where(x < 0, x * operand(slope, x), x)


def _reduction(
    function: Callable[[Any, list[int], bool], Any],
    x: Tensor,
    axes: Value = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    """A reduction over some axes; over all dims if there are none, or over a dim of extent 1 with `noop_with_empty_axes`."""
    dims = known("axes", axes) or []
    if not dims and noop_with_empty_axes:
        return function(x[..., None], [-1], False)
    return function(x, dims or list(range(x.ndim)), bool(keepdims))


def _products(x: Any, dims: list[int], keep: bool) -> Any:
    for dim in sorted((dim % x.ndim for dim in dims), reverse=True):
        x = x.prod(dim, keep)
    return x


def _place_of(largest: bool, x: Tensor, *, axis: int = 0, keepdims: int = 1) -> Any:
    return (x.argmax if largest else x.argmin)(axis, bool(keepdims))


def _cumsum(x: Tensor, axis: Value) -> Any:
    return x.cumsum(int(np.asarray(known("axis", axis)).item()), dtype=x.dtype)


def _top_k(x: Tensor, k: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """Of equal elements the one of the lower index is first: torch's topk has no order, its stable sort has this one."""
    count = int(np.asarray(known("k", k)).item())
    return tuple(it.narrow(axis, 0, count) for it in x.sort(stable=True, dim=axis, descending=bool(largest)))


def _hardmax(x: Tensor, *, axis: int = -1) -> Any:
    """1 at the first maximum along an axis, else 0."""
    places = torch.arange(x.shape[axis], device=x.device).reshape([-1, *[1] * (x.ndim - 1 - axis % x.ndim)])
    return (x.argmax(axis, keepdim=True) == places).to(x.dtype)


def _one_named(names: str, make: Callable[[str], Operator]) -> dict[str, Operator]:
    """ONNX's operators whose names are those of torch in lower case."""
    return {name: make(name.lower()) for name in names.split()}


OPERATORS: Mapping[str, Operator] = {
    **_one_named("Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN", partial(_unary, torch)),
    **_one_named("Log Neg Reciprocal Round Sigmoid Sin Sinh Sqrt Tan Tanh Relu", partial(_unary, torch)),
    **_one_named("Softplus Mish Selu Softsign", partial(_unary, torch.nn.functional)),
    **_one_named("Add Sub Mul", lambda name: partial(_binary, name)),
    "Not": _unary(torch, "logical_not"),
    "Div": _divide,
    "Mod": lambda x, y, *, fmod=0: _binary("fmod" if fmod else "remainder", x, y),
    "Pow": lambda x, y: torch.pow(tensor(x, y), operand(y, x)).to(tensor(x, y).dtype),
    "And": partial(_binary, "logical_and"),
    "Or": partial(_binary, "logical_or"),
    "Xor": partial(_binary, "logical_xor"),
    **{f"Bitwise{name}": partial(_binary, f"bitwise_{name.lower()}") for name in ("And", "Or", "Xor")},
    "BitwiseNot": _unary(torch, "bitwise_not"),
    "BitShift": lambda x, y, *, direction: _binary(f"bitwise_{direction.lower()}_shift", x, y),
    "Equal": partial(_binary, "eq"),
    "Less": partial(_binary, "lt"),
    "LessOrEqual": partial(_binary, "le"),
    "Greater": partial(_binary, "gt"),
    "GreaterOrEqual": partial(_binary, "ge"),
    "Max": _joined(torch.maximum),
    "Min": _joined(torch.minimum),
    "Sum": _joined(torch.add),
    "Mean": lambda *operands: _joined(torch.add)(*operands) / len(operands),
    "Clip": _clip,
    "Gelu": of_tensors(lambda x, *, approximate="none": torch.nn.functional.gelu(x, approximate=approximate)),
    "LeakyRelu": of_tensors(lambda x, *, alpha=0.01: torch.nn.functional.leaky_relu(x, alpha)),
    "Elu": of_tensors(lambda x, *, alpha=1.0: torch.nn.functional.elu(x, alpha)),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": of_tensors(lambda x: x * _hard_sigmoid(x, alpha=1 / 6)),  # torch multiplies by 6 too much first: it overflows
    "Sign": of_tensors(lambda x: torch.where(x != x, x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)),
    "Swish": of_tensors(lambda x, *, alpha=1.0: torch.nn.functional.silu(x) if alpha == 1 else x * torch.sigmoid(x * alpha)),
    "PRelu": _p_relu,
    "ReduceSum": partial(_reduction, lambda x, dims, keep: x.sum(dims, keep)),
    "ReduceMean": partial(_reduction, lambda x, dims, keep: x.mean(dims, keep)),
    "ReduceMax": partial(_reduction, lambda x, dims, keep: x.amax(dims, keep)),
    "ReduceMin": partial(_reduction, lambda x, dims, keep: x.amin(dims, keep)),
    "ReduceProd": partial(_reduction, _products),
    "ReduceL1": partial(_reduction, lambda x, dims, keep: x.abs().sum(dims, keep)),
    "ReduceL2": partial(_reduction, lambda x, dims, keep: x.square().sum(dims, keep).sqrt()),
    "ReduceSumSquare": partial(_reduction, lambda x, dims, keep: x.square().sum(dims, keep)),
    "ReduceLogSum": partial(_reduction, lambda x, dims, keep: x.sum(dims, keep).log()),
    "ReduceLogSumExp": partial(_reduction, lambda x, dims, keep: x.logsumexp(dims, keep)),
    "ArgMax": partial(_place_of, True),
    "ArgMin": partial(_place_of, False),
    "CumSum": _cumsum,
    "Hardmax": _hardmax,
    "TopK": _top_k,
}
