"""ONNX's products, normalizations, attention and global pooling as functions of torch."""

from collections.abc import Mapping
from functools import reduce
from math import sqrt
from typing import Any

import torch

from mirage_eg.frontend.onnx_values import Operator, Tensor, Value, known, of_tensors, operand
from mirage_eg.ir.errors import UnsupportedError


def _gemm(
    a: Tensor, b: Tensor, c: Value = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Any:
    product = (a.t() if transA else a) @ (b.t() if transB else b)
    product = product if alpha == 1 else product * alpha
    if c is None or beta == 0:
        return product
    c = operand(c, product)
    return product + (c if beta == 1 else c * beta)


def _layer_norm(x: Tensor, scale: Tensor, bias: Tensor = None, *, axis: int = -1, epsilon: float = 1e-5) -> Any:
    shape = tuple(x.shape[axis:])
    bias = None if bias is None else bias.expand(shape)
    return torch.nn.functional.layer_norm(x, shape, scale.expand(shape), bias, epsilon)


def _rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Any:
    shape = tuple(x.shape[axis:])
    return torch.nn.functional.rms_norm(x, shape, scale.expand(shape), epsilon)


def _group_norm(x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5) -> Any:
    if scale.shape[0] != x.shape[1]:
        raise UnsupportedError("scales of groups (opset 18) are deprecated, wanted one of each channel (opset 21)")
    return torch.nn.functional.group_norm(x, num_groups, scale, bias, epsilon)


def _lp_norm(x: Tensor, *, axis: int = -1, p: int = 2) -> Any:
    """0 where the norm is 0."""
    norm = x.norm(p=p, dim=axis, keepdim=True)
    return torch.where(norm == 0, 0, x / norm)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    scale: float | None = None,
) -> Any:
    """softmax(scale · Q Kᵀ + mask) V; operands of rank 3 hold the heads in their last dim."""
    packed = query.ndim == 3
    if packed:
        heads = ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
        query, key, value = (it.unflatten(-1, (count, -1)).transpose(1, 2) for it, count in heads)
    if mask is not None and is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = mask & seen if mask.dtype is torch.bool else mask.masked_fill(~seen, -torch.inf)
    scale = 1 / sqrt(query.shape[-1]) if scale is None else scale
    own = {"is_causal": bool(is_causal) and mask is None, "scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
    result = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **own)
    return result.transpose(1, 2).flatten(2) if packed else result


def _dropout(x: Tensor, ratio: Value = None, training: Value = None, *, results: int) -> Any:
    """The operand; the mask says that each element stays."""
    if training is not None and known("training_mode", training) and (ratio is None or known("ratio", ratio) != 0):
        raise UnsupportedError("training_mode is set, wanted inference")
    return (x, torch.ones_like(x, dtype=torch.bool))[:results]


def _local_response_norm(x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    """Each channel over a power of the mean square of its neighbours; of an even size one more of them is after it."""
    before = (size - 1) // 2
    squares = torch.nn.functional.pad(x.square(), [*[0] * (2 * (x.ndim - 2)), before, size - 1 - before])
    total = reduce(torch.add, (squares.narrow(1, place, x.shape[1]) for place in range(size)))
    return x / (total * (alpha / size) + bias).pow(beta)


OPERATORS: Mapping[str, Operator] = {
    "Softmax": of_tensors(lambda x, *, axis=-1: torch.softmax(x, axis)),
    "LogSoftmax": of_tensors(lambda x, *, axis=-1: torch.log_softmax(x, axis)),
    "Gemm": _gemm,
    "MatMul": of_tensors(lambda a, b: a @ b),
    "Einsum": of_tensors(lambda *operands, equation: torch.einsum(equation, *operands)),
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": of_tensors(
        lambda x, scale, bias, *, epsilon=1e-5: torch.nn.functional.instance_norm(x, weight=scale, bias=bias, eps=epsilon)
    ),
    "BatchNormalization": of_tensors(
        lambda x, scale, bias, mean, variance, *, epsilon=1e-5: torch.nn.functional.batch_norm(
            x, mean, variance, scale, bias, eps=epsilon
        )
    ),
    "LpNormalization": _lp_norm,
    "Attention": _attention,
    "GlobalAveragePool": of_tensors(lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True)),
    "GlobalMaxPool": of_tensors(lambda x: x.amax(tuple(range(2, x.ndim)), keepdim=True)),
    "Dropout": _dropout,
    "LRN": _local_response_norm,
}
