"""Random numbers in torch.compile: torch computes them as eager torch, in its order, and one segment computes with them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch.nn import functional as F

from mirage_eg.torch_compile.ahead_of_time import compile
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.gate_inputs import GateInputs
from mirage_eg.torch_compile.records import graph_records
from mirage_eg.torch_compile.settings import Settings
from property_tests.support.library_segments import library_segments
from property_tests.support.torch_cases import WIDTH, norm, projected

X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True, scope="module")
def segments() -> Iterator[None]:
    with library_segments():
        yield


def assert_random_alike(fast: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Results and random states are those of eager torch, in each of two calls."""
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(seed)
            got, state = fast(X), torch.get_rng_state()
            torch.manual_seed(seed)
            torch.testing.assert_close(got, function(X), atol=1e-5, rtol=1e-5)
            assert torch.equal(state, torch.get_rng_state())


def two_dropouts(x: Any) -> Any:
    """Equal calls are two values; a third one nothing reads, and a fourth one reads shapes of the segment."""
    F.dropout(projected(x), 0.3, training=True)
    drawn = [F.dropout(projected(x), 0.3, training=True) for _ in range(2)]
    return norm(drawn[0] + drawn[1]) * torch.rand_like(projected(x)), drawn[0] - drawn[1]


def by_values(x: Any) -> Any:
    """The second random call needs no segment, and follows the first, which does."""
    rates = projected(x).sigmoid()
    chosen = torch.bernoulli(rates)
    return torch.rand(WIDTH) + rates + chosen


@pytest.mark.parametrize("rest", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("function", "count"), [(two_dropouts, 1), (by_values, 2)])
def test_random_numbers_are_those_of_eager_torch(rest: str, function: Callable[..., Any], count: int) -> None:
    options = {"gate": "off", "cache": "off", "rest": rest, "min_ops": 1}
    with config.patch(fallback_random=True):
        assert_random_alike(torch.compile(function, backend=backend, options=options), function)
    [record] = graph_records()
    assert record.used == (count if rest == "eager" else 1)  # Inductor has uniform numbers and compares them


def test_a_module_compiled_ahead_of_time_is_as_random_as_eager_torch() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return two_dropouts(x)

    model = Model()
    assert_random_alike(compile(model, (X,), settings=Settings(gate="off", cache="off", rest="eager", min_ops=1)), model)
    assert graph_records()[-1].used == 1


def test_the_gate_compares_at_masks_of_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    masks, draw = list[Any](), GateInputs.draw

    def noted(self: GateInputs, *args: Any) -> list[Any]:
        inputs = draw(self, *args)
        masks.extend(it for it in inputs if it.dtype is torch.bool)
        return inputs

    monkeypatch.setattr(GateInputs, "draw", noted)
    options = {"gate": "cost", "cache": "off", "rest": "eager", "min_ops": 1}
    with torch.no_grad():
        torch.compile(lambda x: norm(F.dropout(projected(x), 0.3)), backend=backend, options=options)(X)
    assert masks and all(0 < it.float().mean() < 1 for it in masks)
