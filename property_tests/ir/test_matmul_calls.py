"""A product of the library copies no operand whose last batch dims are 1, and is the product that torch has."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mirage_eg.ir.ops import OPS
from mirage_eg.ir.shapes import Shape


class Called(TorchDispatchMode):  # type: ignore[misc]
    """The names of the ops that torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.names.append(str(function))
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(
    ("left", "right", "copies"),
    [
        ((2, 3, 4, 1, 8), (2, 3, 1, 16, 8), False),  # repeated keys of a decoding step
        ((2, 3, 4, 5, 8), (2, 1, 1, 16, 8), False),
        ((1, 3, 4, 5, 8), (1, 3, 1, 16, 8), False),
        ((2, 3, 5, 8), (2, 3, 16, 8), False),
        ((2, 3, 5, 8), (1, 1, 16, 8), False),
        ((5, 8), (2, 3, 16, 8), False),
        ((2, 3, 5, 8), (1, 3, 16, 8), True),  # the first batch dim is repeated
        ((2, 1, 5, 8), (2, 3, 16, 8), True),  # rows of one matrix are columns of none
    ],
)
def test_a_repeated_matrix_is_copied_only_where_it_must_be(left: Shape, right: Shape, copies: bool) -> None:
    x, y = torch.randn(left), torch.randn(right).transpose(-1, -2)
    call = OPS["matmul"].call
    assert call is not None
    with Called() as called:
        product = eval(call(("x", "y"), {}, (left, tuple(y.shape))), {"torch": torch, "x": x, "y": y})
    assert ("aten.clone.default" in called.names) == copies
    assert torch.allclose(product, x @ y, atol=1e-5)
