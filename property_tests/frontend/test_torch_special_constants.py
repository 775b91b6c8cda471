"""Infinite numbers and not-a-number among the arguments of an op are constants of the program, as in torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from property_tests.support.torch_import import imported

OPS: dict[str, Callable[[Any, float], Any]] = {
    "sum": lambda x, c: x + c,
    "difference": lambda x, c: c - x,
    "product": lambda x, c: x * c,
    "quotient": lambda x, c: x / c,
    "inverse quotient": lambda x, c: c / x,
    "lower bound": lambda x, c: torch.clamp(x, min=c),
    "upper bound": lambda x, c: torch.clamp(x, max=c),
    "of a sum": lambda x, c: torch.sum(x * 2) * c,
}


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("name", OPS)
def test_a_special_number_is_a_constant_of_the_program(name: str, value: float) -> None:
    x = torch.tensor([0.5, -2.0, 3.0, float("inf")])
    model = imported(lambda x: OPS[name](x, value) + 1, x)
    assert model.outside == ()
    torch.testing.assert_close(model.run(x), OPS[name](x, value) + 1, equal_nan=True)
