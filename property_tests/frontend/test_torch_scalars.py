"""Tensors without dims have the dims 0 and −1 for every op that takes some, as in torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from property_tests.support.parameters import paired
from property_tests.support.torch_import import imported

ALONG: dict[str, Callable[[Any, int], Any]] = {
    "cumprod": torch.cumprod,
    "cumsum": torch.cumsum,
    "cummax": lambda x, dim: torch.cummax(x, dim).values,
    "cummin": lambda x, dim: torch.cummin(x, dim).values,
    "transpose": lambda x, dim: x.transpose(dim, -1),
    "index_select": lambda x, dim: torch.index_select(x, dim, torch.tensor([0])),
    "sort": lambda x, dim: torch.sort(x, dim),
    "topk": lambda x, dim: torch.topk(x, 1, dim),
    "argmax": torch.argmax,
    "argsort": torch.argsort,
    "sum": torch.sum,
    "sum, kept": lambda x, dim: torch.sum(x, dim, keepdim=True),
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "logsumexp": torch.logsumexp,
    "max": lambda x, dim: torch.max(x, dim),
    "prod": torch.prod,
    "var": lambda x, dim: torch.var(x, dim, correction=0),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "flip": lambda x, dim: torch.flip(x, (dim,)),
    "stack": lambda x, dim: torch.stack([x, x + 1], dim),
    "gather": lambda x, dim: torch.gather(x, dim, torch.tensor(0)),
    "movedim": lambda x, dim: x.movedim(dim, 0),
    "unfold": lambda x, dim: x.unfold(dim, 1, 1),
    "unsqueeze": lambda x, dim: x.unsqueeze(dim),
}


@pytest.mark.parametrize(("name", "dim"), paired(ALONG, [0, -1]))
def test_a_dim_of_a_tensor_without_dims_is_inside(name: str, dim: int) -> None:
    def function(x: torch.Tensor) -> Any:
        result = ALONG[name](x * 2, dim)
        return result * 3 if isinstance(result, torch.Tensor) else tuple(it * 3 for it in result)

    x = torch.tensor(2.5)
    model = imported(function, x)
    assert model.outside == ()
    got, wanted = (it if isinstance(it, tuple) else (it,) for it in (model.run(x), function(x)))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, check_stride=False)


@pytest.mark.parametrize("rank", [1, 2])
def test_an_index_without_dims_selects_as_in_torch(rank: int) -> None:
    x = torch.arange(6.0).reshape((6,) if rank == 1 else (2, 3))
    function = lambda x, index: torch.index_select(x * 2, -1, index) + 1  # noqa: E731
    model = imported(function, x, torch.tensor(1))
    torch.testing.assert_close(model.run(x, torch.tensor(1)), function(x, torch.tensor(1)), check_stride=False)
