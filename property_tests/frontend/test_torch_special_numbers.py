"""Models take not-a-number, infinities and numbers near the ends of float32 as torch does, imported and compiled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as f

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import graph_records
from property_tests.support.parameters import AMPLE, few
from property_tests.support.torch_import import imported

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor(
    [
        [1.0, NAN, 2.0, -1.0],
        [NAN, 5.0, INF, NAN],
        [INF, -INF, 0.0, 1.0],
        [-INF, -INF, -INF, -INF],
        [3.0, -4.0, 3.0, 3.0],
        [-3.4e38, -3.4e38, -3.4e38, -3.4e38],
    ]
)
LARGE = torch.tensor([[1e6, 1e6 - 1, 1e6, 1e6 - 3], [-3e5, -3e5, -3e5 + 2, 0.0], [-100.0, -101.0, -102.0, -100.0]])
SMALL = torch.tensor([[0.0, 1e-39, 3e-39, 1e-38], [1e-20, -1e-20, 0.0, 1.0]])
Function = Callable[[Any], Any]


def _guard(x: Any) -> Any:
    """The largest number, or one below it if x has an infinity: a bound in T5."""
    return torch.where(torch.isinf(x).any(), torch.finfo(x.dtype).max - 1000, torch.finfo(x.dtype).max)


MAXIMA: dict[str, Function] = {
    "relu": torch.relu,
    "relu6": f.relu6,
    "hardtanh": f.hardtanh,
    "hardsigmoid": f.hardsigmoid,
    "hardswish": f.hardswish,
    "leaky_relu": f.leaky_relu,
    "elu": f.elu,
    "clamp": lambda x: x.clamp(-2, 2),
    "clamp from below": lambda x: x.clamp(min=0.5),
    "clamp from above": lambda x: x.clamp(max=torch.tensor(0.5)),
    "maximum": lambda x: torch.maximum(x, x.flip(-1)),
    "minimum": lambda x: torch.minimum(x, 1 - x),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "max_pool": lambda x: f.max_pool2d(x[None, None], 2, 1),
    "running maximum": lambda x: x.cummax(-1).values,
}
COMPARED: dict[str, Function] = {
    "not equal to itself": lambda x: (x != x).float(),
    "the idiom for not-a-number": lambda x: torch.where(x != x, torch.zeros_like(x), x),
    "not less": lambda x: (~(x < 1)).float(),
    "not greater or equal": lambda x: torch.logical_not(x >= x.flip(-1)).float(),
    "as a bool": lambda x: x.bool().float(),
    "whole numbers below and above": lambda x: x.floor() + 10 * x.ceil() + 100 * x.trunc(),
    "not-a-number": lambda x: torch.isnan(x).float(),
    "infinite": lambda x: torch.isinf(x).float() + 2 * torch.isfinite(x).float() + torch.isinf(x.half()).float(),
    "any": lambda x: torch.any(x, -1).float() + 2 * torch.any(x > 4, 0, keepdim=True).float().mean() + x.any().float(),
    "all": lambda x: torch.all(x, 1).float() + 2 * torch.all(x < 4, 0, keepdim=True).float().mean() + x.all().float(),
    "any whole number": lambda x: (x[:, :1] > 0) & ((x > 0).long() * 3).any(-1, keepdim=True) & ~(x > 0).int().all(),
    "the guard of half precision": lambda x: x.half().clamp(-_guard(x.half()), _guard(x.half())).float(),
    "bounds without end": lambda x: x.clamp(max=INF) + x.clamp(-INF, 2.5) + x.clamp(2, 1),
    "greater": lambda x: (x > 0.5).float() + (0.5 <= x).float(),
}
ORDERED: dict[str, Function] = {
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "argmin of all": lambda x: x.argmin(),
    "place of the largest": lambda x: x.max(-1).indices,
    "place of the smallest": lambda x: x.min(0).indices,
    "sort": lambda x: x.sort(dim=-1, stable=True).values,
    "sort, falling": lambda x: x.sort(dim=-1, descending=True, stable=True).values,
    "argsort": lambda x: torch.argsort(x, dim=-1, stable=True),
    "argsort, falling": lambda x: torch.argsort(x, dim=-1, descending=True, stable=True),
    "the largest two": lambda x: x.topk(2).values,
    "the smallest two": lambda x: x.topk(2, largest=False).values,
}
ROWS: dict[str, Function] = {
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
}
SLOPES: dict[str, Function] = {
    "slopes that are no numbers": lambda x: f.prelu(x, torch.tensor([NAN, INF, -INF, 0.5])),
    "a slope for all": lambda x: f.prelu(x, torch.tensor([INF])),
}
OUTER: dict[str, Function] = {
    "a factor before an outer product": lambda x: torch.addr(x[:, :3], x[:, 0] * 1e30, x[0, :3] * 1e30, beta=2, alpha=1e-35),
    "a summand that does not count": lambda x: torch.addr(torch.tensor(NAN), x[:, 0], x[0], beta=0, alpha=0.5),
    "an outer product": lambda x: torch.outer(x[0], x[:, 1]),
    "a factor before a product": lambda x: torch.addcmul(x, x * 1e30, x * 1e30, value=1e-40),
    "a factor before a quotient": lambda x: torch.addcdiv(x, x * 1e30, x * 1e-30, value=1e-35),
    "a factor of zero": lambda x: torch.addcdiv(x, x * 1e30, x.clamp(-1, 1) * 1e-30, value=0.0),
    "a logarithm times zero": lambda x: torch.xlogy(x * 0, torch.tensor([NAN, INF, 0.0, -1.0])),
}
FACTORS: dict[str, Function] = {
    "a divisor below the normal numbers": lambda x: x / 1e-40,
    "two large factors": lambda x: x * 1e20 * 1e20,
    "two small divisors": lambda x: x / 1e-30 / 1e-30,
    "small factors": lambda x: x * 1e30 * 1e-30 * 1e-30,
}
CASES = [
    *((name, function, SPECIAL) for group in (MAXIMA, COMPARED, ORDERED, ROWS, SLOPES) for name, function in group.items()),
    *((f"{name} of large numbers", function, LARGE) for name, function in ROWS.items()),
    *((name, function, LARGE) for name, function in OUTER.items()),
    *((name, function, SMALL) for name, function in FACTORS.items()),
]


def assert_as_torch(got: Any, want: Any, infinite_alike: bool = True) -> None:
    """The same numbers, and not-a-number at the same places; infinities too, or anything that is not finite."""
    assert got.shape == want.shape and got.dtype == want.dtype
    got, want = got.double(), want.double()
    if not infinite_alike:
        got, want = (torch.where(torch.isfinite(x), x, NAN) for x in (got, want))
    torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-6, equal_nan=True)


def with_more(function: Function) -> Function:
    """The function between other ops, so that a kernel has several."""
    return lambda x: function(x * 1) * 2


@pytest.mark.parametrize(("name", "function", "x"), [pytest.param(*case, id=case[0]) for case in CASES])
def test_imported_models_take_special_numbers_as_torch_does(name: str, function: Function, x: Any) -> None:
    it = imported(with_more(function), x)
    assert it.segments
    assert_as_torch(it.run(x), with_more(function)(x), infinite_alike=not name.startswith("log_softmax"))


@pytest.mark.parametrize(("name", "function", "x"), few([pytest.param(*case, id=case[0]) for case in CASES][::4], 6))
def test_compiled_models_take_special_numbers_as_torch_does(name: str, function: Function, x: Any) -> None:
    torch._dynamo.reset()
    options = {"budget": AMPLE, "gate": "off", "min_ops": 1, "cache": "off", "rest": "eager"}
    wide = x.repeat(1, 16)
    with torch.no_grad():
        got = torch.compile(with_more(function), backend=backend, options=options)(wide)
        assert graph_records()[-1].used
        assert_as_torch(got, with_more(function)(wide), infinite_alike=not name.startswith("log_softmax"))
