"""Guards of PyTorch programs: what `where`, masked_fill and losses leave out may be infinite or undefined."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as f

import mirage_eg as mi
import mirage_eg.torch
from mirage_eg.torch_compile.records import graph_records
from property_tests.support.parameters import AMPLE

INF, NAN = float("inf"), float("nan")
Function = Callable[..., Any]
ONE_HOT = torch.eye(4).repeat(4, 2)
LOGITS = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
BAD = torch.where(ONE_HOT > 0, LOGITS, torch.full((), NAN))

GUARDS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "xlogy": (lambda x, y: torch.xlogy(x, y).sum(-1), (ONE_HOT, torch.where(ONE_HOT > 0, 2.0, 0.0))),
    "divergence from one-hot targets": (
        lambda x, p: f.kl_div(torch.log_softmax(x, -1), p, reduction="none").sum(-1),
        (LOGITS, ONE_HOT),
    ),
    "entropy": (lambda p: torch.where(p == 0, 0.0, p * p.log()).sum(-1), (ONE_HOT,)),
    "the second side": (lambda x: torch.where(x > 0, x.sqrt(), -x).mean(-1), (LOGITS,)),
    "masked_fill of NaN": (lambda x, m: x.masked_fill(m == 0, 0.0).sum(-1), (BAD, ONE_HOT)),
    "masked_fill before a product": (lambda x, m: x.masked_fill(m == 0, 0.0) @ x.masked_fill(m == 0, 1.0).T, (BAD, ONE_HOT)),
    "two numbers": (lambda x: torch.where(x > 0, 2.0, -3.0).sum(-1) + x.sum(-1), (LOGITS,)),
    "diag_embed": (lambda x: torch.diag_embed(x) * 2, (torch.tensor([INF, 1.0, -INF, NAN]),)),
    "ignored rows": (
        lambda x: f.cross_entropy(x, torch.tensor([-100, 1]), reduction="none") * 2,
        (torch.tensor([[-INF, 1.0], [-INF, 2.0]]),),
    ),
}


@pytest.mark.parametrize("name", GUARDS)
def test_an_imported_guard_gives_what_torch_gives(name: str) -> None:
    function, arguments = GUARDS[name]

    class Model(torch.nn.Module):
        def forward(self, *x: torch.Tensor) -> Any:
            return function(*x)

    with torch.no_grad():
        got = mi.torch.import_program(torch.export.export(Model().eval(), arguments)).run(*arguments)
    torch.testing.assert_close(got, function(*arguments), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["xlogy", "divergence from one-hot targets", "entropy", "masked_fill of NaN", "two numbers"])
def test_a_compiled_guard_gives_what_torch_gives(name: str) -> None:
    function, arguments = GUARDS[name]
    torch._dynamo.reset()
    options = {"budget": AMPLE, "gate": "off", "min_ops": 1, "cache": "off", "rest": "eager"}
    with torch.no_grad():
        got = torch.compile(function, backend="mirage_eg", options=options)(*arguments)
    assert graph_records()[-1].used
    torch.testing.assert_close(got, function(*arguments), rtol=1e-3, atol=1e-4, equal_nan=True)
