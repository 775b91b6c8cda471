"""Divisions, shifts and masks of integers by a number: exact at every number of a type; pads that are not finite."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from property_tests.support.torch_import import imported

BYTES, SIGNED = torch.arange(256).to(torch.uint8), torch.arange(-128, 128).to(torch.int8)
INTEGERS: dict[str, Callable[[Any], Any]] = {
    "remainder": lambda x: x % 7,
    "remainder by 1": lambda x: x % 1,
    "rest towards 0": lambda x: torch.fmod(x, 5),
    "quotient rounded down": lambda x: torch.div(x, 7, rounding_mode="floor"),
    "quotient towards 0": lambda x: torch.div(x, 7, rounding_mode="trunc"),
    "low bits": lambda x: x & 15,
    "runs of bits": lambda x: x & 0b1011010,
    "no bit": lambda x: x & 0,
    "bits set": lambda x: x | 0b1001,
    "bits turned": lambda x: x ^ 0b101010,
    "all bits turned": lambda x: ~x,
    "shifted left": lambda x: x << 3,
}
SIGNED_ALONE: dict[str, Callable[[Any], Any]] = {
    "high bits": lambda x: x & -8,
    "set": lambda x: x | -6,
    "turned": lambda x: x ^ -3,
}


@pytest.mark.parametrize("name", INTEGERS | SIGNED_ALONE)
def test_arithmetic_of_bits_by_a_number_is_inside_and_exact(name: str) -> None:
    function = (INTEGERS | SIGNED_ALONE)[name]
    for x in [SIGNED, SIGNED.long() * 1000, *([] if name in SIGNED_ALONE else [BYTES])]:
        it = imported(lambda x: function(x) + 1, x)
        assert it.outside == ()
        torch.testing.assert_close(it.run(x), function(x) + 1, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x % -3, "above 0"),
        (lambda x: x.float() % 0.7, "whole number"),
        (lambda x: (x.float() + 1) % 3, "wanted integers"),
        (lambda x: x << 8, "fewer bits"),
    ],
)
def test_what_has_no_exact_form_stays_outside_with_its_reason(function: Callable[[Any], Any], reason: str) -> None:
    it = imported(lambda x: function(x) + 1, SIGNED)
    assert any(reason in one.reason for one in it.outside)


@pytest.mark.parametrize("value", [inf, -inf, nan])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_pads_of_a_number_that_is_not_finite_are_inside(value: float, dtype: torch.dtype) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).to(dtype)
    for widths in ((1, 2), (0, 1, 2, 0), (-1, 2), (0, 0)):
        it = imported(lambda x, widths=widths: f.pad(x * 2, widths, value=value) * 3, x)
        assert it.outside == ()
        torch.testing.assert_close(it.run(x), f.pad(x * 2, widths, value=value) * 3, equal_nan=True)


def test_other_widths_of_infinite_pads_are_another_program() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    one, other = (imported(lambda x, w=w: f.pad(x * 2, w, value=-inf) * 3, x) for w in ((1, 2), (2, 1)))
    assert one.constants.keys() != other.constants.keys()
