"""Writes and sums at indices of one dim or of several, and at steps: the elements of torch, and no others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from property_tests.support.torch_import import imported

X = torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(0))
I, J, VALUES = torch.tensor([0, -1, 3]), torch.tensor([2, -2, 0]), X[:3, 0] + 5  # noqa: E741
PLACES, TWICE = (torch.tensor([0, -1, 3]), torch.tensor([2, -2, 0])), (torch.tensor([0, -1, 0]), torch.tensor([1, 2, 1]))
ROWS, COLUMNS = torch.tensor([3, 0, 3]), torch.tensor([[0, 2], [1, 1], [2, 0]])
put = torch.ops.aten.index_put


def stepped(x: Any, values: Any) -> Any:
    y = x * 2
    y[1::2] = values
    return y + 1


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "two dims": (lambda x, i, j, v: put(x * 2, (i, j), v) + 1, (X, I, J, VALUES)),
    "later dims": (lambda x, i, j, v: put(x * 2, [None, i, j], v[:, 0]) + 1, (X, I, J.clamp(max=1), VALUES)),
    "a table": (lambda x, i, j, v: put(x * 2, (i[:, None], j[None]), v[:, :, None]) + 1, (X, I, J, VALUES)),
    "constant places": (lambda x, v: put(x * 2, PLACES, v) + 1, (X, VALUES)),
    "one number": (lambda x, i: put(x * 2, (i,), torch.tensor(3.0)) + 1, (X, I)),
    "sums along a dim": (lambda x, v: put(x * 2, TWICE[:1], v[:, None].expand(3, 6, 3), True) + 1, (X, VALUES)),
    "sums along two dims": (lambda x, v: put(x * 2, TWICE, v, True) + 1, (X, VALUES)),
    "sums at constant rows": (
        lambda x, v: torch.index_add(x * 2, 0, ROWS, v[:, None].expand(3, 6, 3), alpha=2) + 1,
        (X, VALUES),
    ),
    "sums at constant elements": (lambda x, v: torch.scatter_add(x[0] * 2, 1, COLUMNS, v) + 1, (X, VALUES)),
    "reduced at constant elements": (lambda x, v: torch.scatter_reduce(x[0] * 2, -1, COLUMNS, v, "sum") + 1, (X, VALUES)),
    "overlapping blocks": (
        lambda x: f.fold(x * 2, (6, 5), (3, 2), padding=1, stride=2) + 1,
        (torch.arange(216.0).reshape(2, 12, 9),),
    ),
    "every second row": (stepped, (X, X[:2] * 3)),
    "a slice with steps": (lambda x, v: torch.slice_scatter(x * 2, v, 1, -5, 6, 2) + 1, (X, X[:, :3] * 3)),
    "a number at indices": (
        lambda x, i: torch.scatter(x * 2, 1, i, 7.0) + 1,
        (X[0].t(), torch.tensor([[0, 2], [1, 1], [5, 3]])),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_write_changes_the_elements_that_torch_changes(name: str) -> None:
    function, given = CASES[name]
    it = imported(function, *given)
    assert it.outside == ()
    torch.testing.assert_close(it.run(*given), function(*given))


def test_sums_keep_what_is_no_number_where_it_is() -> None:
    values = VALUES.clone()
    values[0, 0], values[1, 1] = float("nan"), float("inf")
    function, _ = CASES["sums along two dims"]
    torch.testing.assert_close(imported(function, X, values).run(X, values), function(X, values), equal_nan=True)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_write_with_steps_or_places_that_are_moved_is_another_program(accumulate: bool) -> None:
    moved = PLACES[0], torch.tensor([2, -2, 1])
    one, other = (imported(lambda x, v, at=at: put(x * 2, at, v, accumulate) + 1, X, VALUES) for at in (PLACES, moved))
    assert one.constants.keys() != other.constants.keys()  # constant places are inputs: other places, another input
    assert not torch.equal(one.run(X, VALUES), other.run(X, VALUES))


LEFT: dict[str, Callable[..., Any]] = {
    "index_put": lambda x, i: put(x, (i,), x[:3], True) * 2,
    "index_add": lambda x, i: torch.index_add(x, 0, i, x[:3]) * 2,
    "scatter_add": lambda x, i: torch.scatter_add(x, 0, i[:, None, None].expand(3, 6, 3), x) * 2,
    "scatter_reduce": lambda x, i: torch.scatter_reduce(x, 0, i[:, None, None].expand(3, 6, 3), x, "sum") * 2,
}


@pytest.mark.parametrize("name", LEFT)
def test_sums_at_indices_that_only_a_call_knows_stay_with_torch(name: str) -> None:
    it = imported(LEFT[name], X, I)
    assert ["atomic additions" in one.reason for one in it.outside if "data" not in one.reason] == [True]


def test_a_constant_index_out_of_range_is_an_error_of_torch_alone() -> None:
    it = imported(lambda x, v: torch.scatter_add(x[0] * 2, 1, COLUMNS + 1, v) + 1, X, VALUES)
    assert ["out of 0 to 2" in one.reason for one in it.outside] == [True]


def test_a_number_written_on_both_sides_of_an_outside_node_is_two_values() -> None:
    def function(x: Any) -> Any:
        y = x.clone()
        y[:, 0] = 3
        z = torch.erfinv(torch.tanh(y))  # stays outside
        z[:, 0] = 3
        return z * 2, y * 3

    x = X[:, :, 0] / 4
    torch.testing.assert_close(imported(function, x).run(x), function(x))


def test_an_op_whose_decomposition_branches_on_a_value_stays_outside() -> None:
    def function(x: Any, i: Any) -> Any:
        return torch.take(x, i), x.exp() * 2

    given = X, torch.tensor(2)
    it = imported(function, *given)
    assert [node.op for node in it.outside] == ["aten.take.default"]
    torch.testing.assert_close(it.run(*given), function(*given))
