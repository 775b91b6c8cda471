"""A segment returns the result of a large product with gaps between its rows, as Inductor does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mirage_eg.torch_compile.segment_call import own_results
from property_tests.torch_compile.test_image_strides import clones, compiled

COLUMNS, PITCH = 33, 40  # in bfloat16


class Head(nn.Module):
    """A product with more columns than fill multiples of 16 bytes."""

    def __init__(self, flattened: bool = False) -> None:
        super().__init__()
        self.head, self.flattened = nn.Linear(32, COLUMNS, bias=False, dtype=torch.bfloat16), flattened

    def forward(self, x: Any) -> Any:
        y = self.head(torch.relu(x))
        return y.flatten() if self.flattened else y


def test_a_product_is_returned_with_gaps_between_its_rows() -> None:
    model, x = Head().eval(), torch.randn(2, 32, 32, dtype=torch.bfloat16)
    result, [call], graph = compiled(model, x)
    assert result.stride() == (32 * PITCH, PITCH, 1) and not clones(graph)
    assert "contiguous()" not in call.source.partition("def launch")[2].partition("def ")[0]
    torch.testing.assert_close(result, model(x))


def test_columns_of_a_product_with_a_padded_weight_are_no_copies() -> None:
    """Inductor pads large products on a GPU before it calls the backend."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, PITCH, dtype=torch.bfloat16))

        def forward(self, x: Any) -> Any:
            columns = (torch.relu(x).view(-1, 32) @ self.weight)[:, :COLUMNS]
            return torch.ops.aten._unsafe_view(columns, (2, 32, COLUMNS))

    model, x = Padded().eval(), torch.randn(2, 32, 32, dtype=torch.bfloat16)
    result, [call], graph = compiled(model, x)
    assert result.stride() == (32 * PITCH, PITCH, 1) and not clones(graph)
    launch = call.source.partition("def launch")[2].partition("def ")[0]
    assert "contiguous()" not in launch and "aligned_product" not in launch
    torch.testing.assert_close(result, model(x))


def test_a_result_that_shares_memory_is_copied_with_its_gaps() -> None:
    y, strides = torch.randn(64, PITCH), [(PITCH, 1), (32 * PITCH, PITCH, 1)]
    first, second = own_results([], [y[:, :COLUMNS], y[:, :COLUMNS].reshape(2, 32, COLUMNS)], strides)
    assert second.stride() == strides[1] and second.data_ptr() != first.data_ptr()
    assert torch.equal(second.view(64, COLUMNS), first)


def test_other_rows_of_a_product_have_no_gaps() -> None:
    model, x = Head(flattened=True).eval(), torch.randn(2, 32, 32, dtype=torch.bfloat16)
    result, _, _ = compiled(model, x)
    assert result.is_contiguous()
    torch.testing.assert_close(result, model(x))


def test_code_of_inductor_reads_rows_with_gaps() -> None:
    class Counted(Head):
        def forward(self, x: Any) -> Any:
            return torch.bucketize(super().forward(x), torch.tensor([0.0, 100.0], dtype=torch.bfloat16))

    model, x = Counted().eval(), torch.randn(2, 32, 32, dtype=torch.bfloat16)
    result, _, _ = compiled(model, x)
    assert torch.equal(result, model(x))


@pytest.mark.parametrize(
    "seen",
    [
        lambda y: torch.as_strided(y, (16, COLUMNS), (2 * COLUMNS, 1)),
        lambda y: y[:, None].view(-1),
        lambda y: y.unsqueeze(0).squeeze(0).view(-1),
        lambda y: [it.view(-1) for it in y.chunk(2)],
    ],
)
def test_a_product_whose_memory_is_seen_otherwise_has_no_gaps(seen: Callable[[Any], Any]) -> None:
    class Seen(Head):
        def forward(self, x: Any) -> Any:
            return seen(super().forward(x))

    model, x = Seen().eval(), torch.randn(2, 32, 32, dtype=torch.bfloat16)
    result, _, _ = compiled(model, x)
    torch.testing.assert_close(result, model(x))
