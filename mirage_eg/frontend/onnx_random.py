"""ONNX's random operators as functions of torch, whose generator gives the numbers: a seed of the model has no influence."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mirage_eg.frontend.onnx_values import Operator, Tensor, of_tensors, torch_type


def _uniform(*, shape: Sequence[int], dtype: int = 1, low: float = 0.0, high: float = 1.0) -> Any:
    return torch.rand(list(shape), dtype=torch_type(dtype)) * (high - low) + low


def _normal(*, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0) -> Any:
    return torch.randn(list(shape), dtype=torch_type(dtype)) * scale + mean


def _uniform_like(x: Tensor, *, dtype: int = 0, low: float = 0.0, high: float = 1.0) -> Any:
    return torch.rand_like(x, dtype=torch_type(dtype) if dtype else x.dtype) * (high - low) + low


def _normal_like(x: Tensor, *, dtype: int = 0, mean: float = 0.0, scale: float = 1.0) -> Any:
    return torch.randn_like(x, dtype=torch_type(dtype) if dtype else x.dtype) * scale + mean


def _multinomial(x: Tensor, *, dtype: int = 6, sample_size: int = 1) -> Any:
    """Classes by their logarithms, which need not be normalized."""
    return torch.multinomial(torch.softmax(x, -1), sample_size, replacement=True).to(torch_type(dtype))


OPERATORS: Mapping[str, Operator] = {
    "RandomUniform": _uniform,
    "RandomNormal": _normal,
    "RandomUniformLike": _uniform_like,
    "RandomNormalLike": _normal_like,
    "Bernoulli": of_tensors(lambda x, *, dtype=0: torch.bernoulli(x).to(torch_type(dtype) if dtype else x.dtype)),
    "Multinomial": _multinomial,
}
