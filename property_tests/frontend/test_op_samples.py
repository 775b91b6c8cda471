"""One op and module of ten of PyTorch's databases (by default of four hundred) is right inside or outside, or refused."""

from typing import Any

import pytest
import torch

from property_tests.support.op_samples import KINDS, Sample, check, differs, ranks, samples_of, subjects, tenth, tied_dim
from property_tests.support.parameters import few

PARTS = 40


@pytest.mark.parametrize("part", few(range(PARTS), 1))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_samples_of_torch_are_right(kind: str, part: int) -> None:
    """The names of the samples, for which torch's databases are read, are no parameters."""
    some = list(tenth(kind).items())[part::PARTS]
    found = {name: check(kind, subject) for name, subject in some}
    assert found and not {name: it.faults for name, it in found.items() if it.counts["wrong"] or it.counts["crash"]}


TIED = torch.tensor([[3.0, 1.0, 3.0, float("nan")], [0.0, -0.0, 0.0, 1.0]])
ORDERS = {
    "the same": ([[1, 0, 2, 3], [0, 1, 2, 3]], True),
    "ties in another order": ([[1, 2, 0, 3], [2, 0, 1, 3]], True),
    "a wrong index": ([[0, 1, 2, 3], [0, 1, 2, 3]], False),
    "a tie chosen twice": ([[1, 0, 0, 3], [0, 1, 2, 3]], False),
    "no index": ([[1, 0, 4, 3], [0, 1, 2, 3]], False),
    "a negative index": ([[1, 0, 2, -1], [0, 1, 2, 3]], False),
    "too few": ([[1, 0, 2], [0, 1, 2]], False),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("dim", [0, 1])
def test_ties_may_be_in_any_order_and_nothing_else_may(name: str, dim: int) -> None:
    places, right = ORDERS[name]
    wanted, got = (torch.tensor(it) for it in (ORDERS["the same"][0], places))
    x, wanted, got = (it if dim else it.t().contiguous() for it in (TIED, wanted, got))
    sample = Sample(torch.argsort, (x,), tied=dim)
    whole: list[Any] = [ranks((it.clone(), it), sample) for it in (got, wanted)]
    alone = [ranks(it, sample) for it in (got, wanted)]
    assert bool(differs(alone[0], alone[1], alone[1], special=False, strides=True)) is not right
    unchanged = torch.equal(got, wanted)  # values, which come first, are compared as they are
    assert bool(differs(whole[0], whole[1], whole[1], special=False, strides=True)) is not unchanged


@pytest.mark.parametrize("name", ["sort", "argsort", "topk"])
def test_the_dim_of_ties_is_that_of_the_sample(name: str) -> None:
    found = [it.tied for it in samples_of("int64", subjects("int64")[name])]
    assert any(it is not None for it in found)
    for sample in samples_of("int64", subjects("int64")[name]):
        result = sample.function(*sample.fresh())
        indices = result if name == "argsort" else result[1]
        order = ranks(indices, sample)
        assert (order is indices) is (sample.tied is None or not sample.tensors[0].ndim)


def test_a_stable_order_leaves_no_ties_open() -> None:
    assert tied_dim("sort", (), {"stable": True, "dim": 1}) is None
    assert tied_dim("sort", (), {"stable": False, "dim": 1}) == 1
    assert tied_dim("topk", (2, 0), {}) == 0
    assert tied_dim("argsort", (), {}) == -1
    assert tied_dim("argmax", (0,), {}) is None
