"""How far results are from a reference: by the criterion of PyTorch's dashboard, and at the element of the largest error."""

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any

import torch
from torch.utils import _pytree

_FACTOR = 3.0  # errors of eager's that a compiled model may have
_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-8}  # besides, relative; for other types that of 16 bits
_OF_16_BITS = 1e-3
_CHUNK = 1 << 26  # elements that are compared at once: they are copied in float64


def tensors_of(results: Any) -> list[Any]:
    """The tensors of a model's results, in order."""
    return [it for it in _pytree.tree_leaves(results) if isinstance(it, torch.Tensor)]


def relative_error(results: Sequence[Any], reference: Sequence[Any]) -> float:
    """The root mean square of differences over that of the reference, the largest of all results.

    Infinite where shapes, whole numbers, or the places of numbers that are not finite differ.
    """
    if len(results) != len(reference):
        return inf
    return max((_error(*pair) for pair in zip(results, reference, strict=True)), default=0.0)


def _error(result: Any, wanted: Any) -> float:
    if result.shape != wanted.shape:
        return inf
    if not result.is_floating_point():
        return 0.0 if torch.equal(result, wanted) else inf
    differences = squares = 0.0
    for part, other in zip(result.flatten().split(_CHUNK), wanted.flatten().split(_CHUNK), strict=True):
        one, two = part.double(), other.double()
        finite = two.isfinite()
        if not torch.equal(one.isfinite(), finite):
            return inf
        differences += float((one - two)[finite].square().sum())
        squares += float(two[finite].square().sum())
    return sqrt(differences / squares) if squares else sqrt(differences)


def passes(error: float, eager: float, dtype: torch.dtype) -> bool:
    """Whether an error is close to eager's own."""
    return error <= _FACTOR * eager + _TOLERANCES.get(dtype, _OF_16_BITS)


def largest_error(results: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest error of results relative to the largest element of each; infinite where shapes or NaN differ."""
    if [x.shape for x in results] != [x.shape for x in wanted]:
        return inf
    return max((_of_largest(*pair) for pair in zip(results, wanted, strict=True)), default=0.0)


def _of_largest(result: Any, wanted: Any) -> float:
    """`largest_error` of one result."""
    parts = [*zip(result.reshape(-1).split(_CHUNK), wanted.reshape(-1).split(_CHUNK), strict=True)]
    size = max((float(y.double().abs().nan_to_num(0.0, 0.0).max()) for _, y in parts if y.numel()), default=0.0)
    error = 0.0
    for x, y in parts:
        if not y.numel():
            continue
        x, y = x.double(), y.double()
        same = (x == y) | (x.isnan() & y.isnan())
        error = max(error, float((x - y).abs().nan_to_num(inf, inf, inf).masked_fill(same, 0.0).max()))
    return error / (size or 1.0)
