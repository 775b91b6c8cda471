"""ONNX's random operators as functions of torch, whose generator gives the numbers: a seed of the model has no influence."""

from collections.abc import Mapping
from typing import Any

import torch

from mirage_eg.frontend.onnx_values import Operator, Tensor, of_tensors, torch_type


def _type(dtype: int, x: Tensor) -> Any:
    """The type that a node asks for, or that of its operand."""
    return torch_type(dtype) if dtype else x.dtype


OPERATORS: Mapping[str, Operator] = {
    "RandomUniform": lambda *, shape, dtype=1, low=0.0, high=1.0: (
        torch.rand(list(shape), dtype=torch_type(dtype)) * (high - low) + low
    ),
    "RandomNormal": lambda *, shape, dtype=1, mean=0.0, scale=1.0: (
        torch.randn(list(shape), dtype=torch_type(dtype)) * scale + mean
    ),
    "RandomUniformLike": of_tensors(
        lambda x, *, dtype=0, low=0.0, high=1.0: torch.rand_like(x, dtype=_type(dtype, x)) * (high - low) + low
    ),
    "RandomNormalLike": of_tensors(
        lambda x, *, dtype=0, mean=0.0, scale=1.0: torch.randn_like(x, dtype=_type(dtype, x)) * scale + mean
    ),
    "Bernoulli": of_tensors(lambda x, *, dtype=0: torch.bernoulli(x).to(_type(dtype, x))),
    # Classes by their logarithms, which need not be normalized.
    "Multinomial": of_tensors(
        lambda x, *, dtype=6, sample_size=1: torch.multinomial(torch.softmax(x, -1), sample_size, replacement=True).to(
            torch_type(dtype)
        )
    ),
}
