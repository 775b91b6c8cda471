"""A sample of torch is excused where float32 or torch itself is the reason, and nowhere else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as f

from property_tests.support.op_samples import Sample, differs, excuse
from property_tests.support.torch_import import AsModule

INF, NAN = float("inf"), float("nan")


def _deviation(x: Any) -> Any:
    return x.std(0)


def _margin(x: Any) -> Any:
    return f.multi_margin_loss(x, torch.tensor([1]))


def _excuse(function: Callable[[Any], Any], x: list[float], got: float) -> str:
    sample = Sample(AsModule(function), (torch.tensor(x),))
    wanted, exact = (function(*sample.fresh(dtype)) for dtype in (torch.float32, torch.float64))
    assert wanted.isfinite()

    def right(*results: Any) -> bool:
        return not differs(*results, special=True, strides=False)

    assert not right(torch.tensor(got), wanted, exact)
    return excuse(sample, torch.tensor(got), wanted, exact, right)


EXCUSED = [
    ("range", _deviation, [-1e38, -1.0, 4.0, 2.0], INF),
    ("range", lambda x: x.prod(0), [1e38, 1e-38, 1e38, 1e-38], NAN),
    ("cancellation", lambda x: x.mean(0), [1e38, -1e38, 0.4, 2.0], 0.0),
    ("decomposition", _margin, [1.0, 0.5, NAN], NAN),
]
NOT_EXCUSED = [
    (_deviation, [-1e38, -1.0, 4.0, 2.0], 4e37),
    (_deviation, [-9.0, -1.0, 4.0, 2.0], INF),
    (lambda x: x.mean(0), [1e38, -1e38, 0.4, 2.0], 1e34),
    (lambda x: x.mean(0), [1e38, 2e38], 1.6e38),
    (lambda x: x.mean(0), [1e7, -1e7, 0.4, 2.0], 0.0),
    (_margin, [1.0, 0.5, NAN], 2.0),
    (_margin, [1.0, 0.5, 1.0], NAN),
]


@pytest.mark.parametrize(("why", "function", "x", "got"), EXCUSED)
@pytest.mark.filterwarnings("ignore")
def test_a_result_that_float32_or_torch_makes_differ_is_excused(why: str, function: Any, x: list[float], got: float) -> None:
    assert _excuse(function, x, got) == why


@pytest.mark.parametrize(("function", "x", "got"), NOT_EXCUSED)
@pytest.mark.filterwarnings("ignore")
def test_no_other_result_is_excused(function: Any, x: list[float], got: float) -> None:
    assert not _excuse(function, x, got)
