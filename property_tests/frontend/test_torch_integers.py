"""Integers that a model computes: comparisons, arithmetic, choices and casts are exact, and stay inside."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as f

from mirage_eg.ir.op.elementwise import PACKAGED
from property_tests.support.torch_import import imported, relative_error

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
A, B = (torch.arange(24).mul(step).remainder(7).reshape(4, 6) for step in (5, 3))
TOKENS = torch.tensor([[5, 3, 1, 1], [4, 1, 1, 1]])


def shifted(tokens: Any, weight: Any) -> Any:
    """The embeddings of tokens one place to the right, as the input of a decoder."""
    right = tokens.new_zeros(tokens.shape)
    right[:, 1:] = tokens[:, :-1].clone()
    right[:, 0] = 2
    return f.embedding(right.masked_fill(right == 5, 1).to(torch.int32), weight)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "comparisons": (lambda x, i, j: x * (i < j) + x * (i >= 2) * (i != j) + x * (i == 3) * (i <= j) - x * (i > j), (X, A, B)),
    "comparisons of numbers": (lambda x, i: x * (x < i) + x * (i > x) * (i < 3), (X, A)),
    "arithmetic": (lambda x, i, j: x * (2 * i + j - 3 * (i - j) + (5 - i) + torch.sub(i, j, alpha=2)).float(), (X, A, B)),
    "differences of large numbers": (lambda x, i: x * ((i + 2**20 + 1) - (i + 2**20)), (X, A)),
    "numbers and integers": (lambda x, i: x * i + i * 0.5 + i / 3 + (x - i) + i / i.clamp(min=1), (X, A)),
    "two types": (lambda x, i, j: x * (i.int() + j).int() + x * (i.int() * 2 == j), (X, A, B)),
    "choices": (
        lambda x, i: x * torch.where(i > 2, i, 0) + x * torch.where(x > 0, i, -i) + x * i.masked_fill(i == 2, -7),
        (X, A),
    ),
    "bounds": (
        lambda x, i, j: x * i.clamp(1, 3) + i.clamp(min=2) * x + torch.maximum(i, j) * x - torch.minimum(i, j),
        (X, A, B),
    ),
    "floors": (lambda x, i: x * ((i - 3) // 2), (X, A)),
    "signs": (lambda x, i: x * (-i).abs() + x * (i - 4).abs().float(), (X, A)),
    "extremes": (lambda x, i: x * i.amax(-1, keepdim=True) + (i - 2**62 - 2**62).amin(0) * x + x * (i.max() - i.min()), (X, A)),
    "conditions": (lambda x, i: x * i.bool() - x * (~i.bool()) + x * i.bool().int() + x * (x > 0).long(), (X, A)),
    "sums": (lambda x, i: x / (i > 1).sum(1, keepdim=True).clamp(min=1) + x * i.sum(-1, keepdim=True) + i.sum(), (X, A)),
    "positions of tokens": (
        lambda t, w: f.embedding((torch.cumsum(t.ne(1).int(), 1).type_as(t) * t.ne(1).int()).long() + 1, w),
        (TOKENS, X.reshape(8, 3)),
    ),
    "tokens of a decoder": (shifted, (TOKENS, X.reshape(8, 3))),
    "window after a position": (
        lambda x, p: x.masked_fill(
            ~((torch.arange(6)[None] <= p[:, None]) & (torch.arange(6)[None] > p[:, None] - 3)), float("-inf")
        ).softmax(-1),
        (X, torch.arange(4) + 1),
    ),
    "classes": (lambda x, t: x @ f.one_hot(t, 6).to(x.dtype).T, (X, torch.tensor([3, 0, 5]))),
    "smoothed labels": (lambda x, t: f.cross_entropy(x, t, label_smoothing=0.1), (X, torch.tensor([3, 0, 5, 5]))),
    "packed nibbles": (
        lambda x, i: x * torch.stack([i & 15, i >> 4], -1).view(4, 6).to(x.dtype),
        (X, torch.arange(12, dtype=torch.uint8).mul(21).reshape(4, 3)),
    ),
    "bytes": (lambda x, i: x @ i.to(x.dtype).t(), (X, A.to(torch.int8) - 3)),
    "one of each row": (lambda x, t: x.reshape(2, 4, 3)[torch.arange(2), t.argmax(-1)], (X, TOKENS)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_of_a_model_are_computed_inside_and_exactly(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    it = imported(function, *arguments)
    assert it.outside == ()
    wide = [x.double() if x.is_floating_point() else x for x in arguments]
    assert relative_error(it.run(*arguments), function(*wide)) <= 1e-6


def test_a_product_with_bytes_and_their_scales_is_inside() -> None:
    x, weight, scales = X.bfloat16(), A.to(torch.int8) - 3, X[:, 0].bfloat16()
    it = imported(torch.ops.aten._weight_int8pack_mm, x, weight, scales)
    assert it.outside == ()
    assert relative_error(it.run(x, weight, scales), (x.double() @ weight.double().t()) * scales.double()) <= 2**-7


class Bytes(torch.nn.Module):
    """A linear layer whose weight is a buffer of bytes with one scale for each of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", A.to(torch.int8) - 3)
        self.register_buffer("scales", X[:, 0].abs())

    def forward(self, x: Any) -> Any:
        return x @ self.weight.to(x.dtype).t() * self.scales


def test_a_weight_of_bytes_stays_one_in_the_imported_program() -> None:
    it = imported(Bytes(), X)
    assert it.outside == () and "int8" in {str(kind.dtype) for kind in it.segments[0].program.input_types}
    assert relative_error(it.run(X), Bytes()(X)) <= 1e-6


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, i: x.gather(1, (x * 2).to(torch.int16).clamp(0, 3).long()), "float32"),
        (lambda x, i: x * (i < 2.5), "whole number"),
        (lambda x, i: x * (i.to(torch.uint16).float()), "uint16"),
    ],
)
def test_what_rounds_to_integers_stays_outside(function: Callable[..., Any], reason: str) -> None:
    it = imported(function, X, A)
    assert [reason in node.reason for node in it.outside if "only moves" not in node.reason][:1] == [True], it.outside
    assert relative_error(it.run(X, A), function(X, A)) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_numbers_without_their_fraction_are_integers_as_in_torch(dtype: torch.dtype) -> None:
    x = torch.tensor([2.9, -2.9, 0.5, -0.5, -0.0, 3e8, -3e8])
    program = imported(lambda x: (x * 1).to(dtype), x)
    assert program.outside == () and torch.equal(program.run(x), x.to(dtype))


@pytest.mark.parametrize(("dtype", "bits", "of_none"), [("int32", 32, 0), ("int64", 64, -(2**63))])
def test_numbers_beyond_the_range_are_the_nearest_in_it_as_on_gpus(dtype: str, bits: int, of_none: int) -> None:
    x, low, high = np.array([1e30, -1e30, np.inf, -np.inf, np.nan]), -(2.0 ** (bits - 1)), float(2 ** (bits - 1) - 1)
    record = PACKAGED[f"to_{dtype}"]
    assert record.numbers is not None and record.numbers(np, x).tolist() == [high, low, high, low, of_none]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_numbers_beyond_the_range_of_a_byte_lose_their_high_bits_as_in_torch(dtype: torch.dtype) -> None:
    x = torch.tensor([300.0, -129.0, 255.9, -0.5, 127.6, -128.9, 1e10, -3e9, float("inf"), float("-inf"), float("nan")])
    program = imported(lambda x: (x * 1).to(dtype), x)
    assert program.outside == () and torch.equal(program.run(x), x.to(dtype))
