"""Random numbers at import: torch computes them as eager torch does, in its order, and segments read them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from mirage_eg.frontend.fx_partition import RANDOM
from property_tests.support.parameters import few
from property_tests.support.torch_import import imported, relative_error

X = torch.rand(2, 3, 4, 8, generator=torch.Generator().manual_seed(0))


def assert_random(function: Callable[[Any], Any], calls: int, x: Any = X, segments: int = 1) -> None:
    """So many random calls outside, and the results and the random state of eager torch."""
    it = imported(function, x)
    assert len(it.segments) == segments and len(it.outside) == calls
    torch.manual_seed(3)
    got, state = it.run(x), torch.get_rng_state()
    torch.manual_seed(3)
    assert relative_error(got, function(x)) <= 1e-6
    assert torch.equal(state, torch.get_rng_state())
    if segments == 1:
        assert {node.reason for node in it.outside} <= {RANDOM}


_ONE = {
    "dropout": lambda x: f.dropout(x.exp(), 0.3) + 1,
    "native dropout and its mask": lambda x: torch.native_dropout(x.exp(), 0.3, None),
    "channels": lambda x: f.dropout2d(x.exp(), 0.3) + 1,
    "alpha": lambda x: f.alpha_dropout(x.exp(), 0.3, True) + 1,
    "channels, alpha": lambda x: f.feature_alpha_dropout(x.exp(), 0.3, True) + 1,
    "attention": lambda x: f.scaled_dot_product_attention(x, x.exp(), x, dropout_p=0.3),
    "like a value": lambda x: torch.randn_like(x.exp()) * x.exp(),
    "in place": lambda x: x.exp().mul_(torch.empty_like(x).exponential_()),
    "in place of a value": lambda x: x.exp() + x.sin().exp().uniform_(),
}


@pytest.mark.parametrize("name", few(_ONE, 5))
def test_what_is_computed_of_random_numbers_is_in_the_segment_around_it(name: str) -> None:
    assert_random(_ONE[name], 1)


@pytest.mark.parametrize("op", [f.dropout, f.dropout2d, f.alpha_dropout])
def test_a_dropout_without_a_choice_is_not_random(op: Callable[..., Any]) -> None:
    def function(x: Any) -> Any:
        return op(x.exp(), 0.3, False) + op(x, 0.0, True)

    assert_random(function, 0)


def test_a_dropout_of_probability_one_is_a_product_with_zero() -> None:
    assert_random(lambda x: f.dropout(x.exp(), 1.0, True) + 1, 0)
    numbers = torch.tensor([1.0, torch.inf, torch.nan, -2.0]).view(2, 2)
    got = imported(lambda x: f.dropout(x, 1.0, True) + 1, numbers).run(numbers)
    torch.testing.assert_close(got, f.dropout(numbers, 1.0, True) + 1, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_mask_depends_on_shape_type_and_strides_alone(dtype: torch.dtype) -> None:
    wide = torch.rand(6, 40, 34).to(dtype) + 1
    strided = wide.transpose(0, 2), wide[:, ::2], wide[None].to(memory_format=torch.channels_last), wide[:1].expand(3, 40, 34)
    for x in (wide, *strided):
        drawn = []
        for op, y in (
            (lambda it: f.dropout(it, 0.3) != 0, x),
            *((lambda it: torch.native_dropout(it, 0.3, True)[1], it) for it in (x, torch.empty_like(x))),
        ):
            torch.manual_seed(2)
            drawn.append((op(y), torch.get_rng_state()))
        assert all(torch.equal(*pair) for other in drawn[1:] for pair in zip(drawn[0], other, strict=True))


def test_equal_random_calls_are_two_values() -> None:
    def function(x: Any) -> Any:
        return (f.dropout(x.exp(), 0.5) - f.dropout(x.exp(), 0.5)) / (torch.rand(4, 8) - torch.rand(4, 8))

    assert_random(function, 4)
    result = imported(function, X).run(X)
    assert result.any() and not result.isnan().any()


@pytest.mark.parametrize("in_place", [False, True], ids=["as exported", "made functional"])
def test_a_random_call_that_nothing_reads_advances_the_generator(in_place: bool) -> None:
    def function(x: Any) -> Any:
        torch.rand_like(x.exp())
        f.dropout(x.exp(), 0.5)
        y = f.dropout(x.exp(), 0.5)
        return y.add_(1) if in_place else y + 1

    assert_random(function, 3)


def test_the_dropout_between_layers_of_an_lstm_is_torchs() -> None:
    layers = torch.nn.LSTM(8, 8, 2, dropout=0.5).requires_grad_(False)
    assert_random(lambda x: layers(x.exp())[0] + 1, 1, X[0], segments=2)


def test_a_random_call_by_shapes_follows_one_by_values_before_it() -> None:
    def function(x: Any) -> Any:
        rates = torch.softmax(x, -1)
        chosen = torch.multinomial(rates.view(-1, 8), 1)
        return torch.rand(8) + rates, chosen

    assert_random(function, 2, segments=2)
