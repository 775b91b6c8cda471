"""An imported program runs as its model does: it changes what the model changes, and computes outside what torch alone can."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mirage_eg.frontend.torch_export import import_graph, import_program
from mirage_eg.ir.errors import ProgramError
from property_tests.support.torch_import import imported

CHANGES: dict[str, Callable[..., Any]] = {
    "an argument": lambda x: x.add_(1) * 2,
    "an argument that is returned": lambda x: x.mul_(3),
    "an argument after a copy of it": lambda x: (x.clone(), x.add_(1), x.reshape(-1)),
    "a part of an argument": lambda x: x[0].fill_(7) + x[1],
    "an argument by another type": lambda x: x.add_(torch.tensor(2.0, dtype=torch.float64)),
    "an argument and a view of it": lambda x: (x.add_(1), x.t() * 2),
}


def clones(tensors: Any) -> list[torch.Tensor]:
    return [it.clone() for it in tensors]


@pytest.mark.parametrize("change", CHANGES)
def test_an_argument_that_the_model_changes_is_changed(change: str) -> None:
    function, x = CHANGES[change], torch.arange(6.0).reshape(2, 3)
    model = imported(function, x.clone())
    eager, given = x.clone(), x.clone()
    wanted, got = function(eager), model.run(given)
    assert torch.equal(given, eager)
    for one, other in zip(
        clones(got if isinstance(got, tuple) else [got]),
        clones([wanted] if isinstance(wanted, torch.Tensor) else wanted),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_an_argument_that_is_returned_is_itself_the_result() -> None:
    x = torch.zeros(3)
    assert imported(lambda x: x.add_(1), x.clone()).run(x) is x


def test_two_arguments_that_change_places_keep_their_values() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> None:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    x, y = torch.zeros(2), torch.ones(2)
    imported(swap, x.clone(), y.clone()).run(x, y)
    assert x.tolist() == [1, 1]
    assert y.tolist() == [0, 0]


UNREAD: dict[str, Callable[..., Any]] = {
    "an empty result": lambda x, y: torch.where(y > 0, y, x[:, 1:]),
    "the type": lambda x, y: torch.logaddexp(x, y).new_full((3,), 2),
    "the shape": lambda x, y: torch.empty_like(torch.logaddexp(x, y)).fill_(2),
    "a shape that is filled with zeros": lambda x, y: torch.logaddexp(x, y).zero_(),
}


@pytest.mark.parametrize("function", UNREAD.values(), ids=UNREAD)
def test_a_value_of_which_nothing_is_read_is_in_no_segment(function: Callable[..., Any]) -> None:
    x, y = torch.randn(5, 1), torch.tensor(0.5)
    model = imported(function, x, y)
    assert model.segments == ()
    torch.testing.assert_close(model.run(x, y), function(x, y))


def test_what_torch_computes_has_its_own_type_whatever_the_graph_declares() -> None:
    class Counts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.unique(x, return_counts=True)

    x = torch.tensor([1.0, 3.0, 1.0])
    module = torch.export.export(Counts(), (x,), strict=False).graph_module
    for node in module.graph.nodes:  # as torch 2.11 declares them
        if "getitem" in node.name:
            node.meta["val"] = node.meta["val"].float()
    for got, wanted in zip(import_graph(module).run(x), Counts()(x), strict=True):
        assert got.dtype is wanted.dtype and torch.equal(got, wanted)


def test_two_segments_that_fill_equal_memory_do_not_share_it() -> None:
    def filled(x: torch.Tensor) -> torch.Tensor:
        both = x.new_empty(4)
        both[:2], both[2:] = x, x * 2
        return both

    def function(x: torch.Tensor) -> torch.Tensor:
        return filled(torch.atan(filled(x))[1:3])

    x, other = torch.tensor([3.0, 4.0]), torch.tensor([-1.0, 5.0])
    assert torch.equal(imported(function, x).run(other), function(other))


DEPENDENT: dict[str, Callable[..., Any]] = {
    "nonzero": lambda x: torch.nonzero(x) + 1,
    "unique": lambda x: torch.unique(x) * 2,
    "a mask": lambda x: x[x > 1] * 2,
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_sizes_that_depend_on_values_stay_outside_and_run(name: str) -> None:
    x = torch.tensor([0.0, 3.0, 2.0, 3.0])
    model = imported(DEPENDENT[name], x)
    assert "symbolic shape" in " ".join(it.reason for it in model.outside)
    for other in (x, torch.tensor([1.0, 0.0, 0.0, 5.0])):  # of other sizes
        assert torch.equal(model.run(other), DEPENDENT[name](other))


def as_size(number: Any) -> Any:
    """A number of a tensor that torch.export takes for an extent."""
    size = number.item()
    torch._check(size >= 0)
    torch._check(size < 100)
    return size


NUMBERS: dict[str, Callable[..., Any]] = {
    "of an argument": lambda x: x.max().item(),
    "of a value in a program": lambda x: ((x * 2).sum() * 3, (x * 2).sum().item()),
    "an expression of them": lambda x: x.max().item() * 2 + x.min().item(),
    "a list of them": lambda x: (x * 2).tolist(),
    "an extent": lambda x: torch.zeros(as_size((x * 2).sum())) + 1,
    "a bound": lambda x: (x[: as_size((x - 1).max())], x + 1),
    "a factor": lambda x: x * x.max().item(),
    "what fills a shape": lambda x: torch.full_like(x, (x * 0.5).max().item(), dtype=torch.float32) * 2,
    "a size": lambda x: (x.nonzero().shape[0], x + 1),
    "an expression of sizes": lambda x: x.nonzero().shape[0] * 2 + x.shape[0],
    "a truth": lambda x: ((x * 2).sum() > 20).item(),
    "parts by indices": lambda x: torch.tensor_split(x, x[1:3] + 1),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_depend_on_values_are_computed_where_they_are_used(name: str) -> None:
    x = torch.tensor([0, 1, 2, 3])
    model = imported(NUMBERS[name], x)
    for other in (x, torch.tensor([1, 0, 2, 4])):
        got, wanted = model.run(other), NUMBERS[name](other)
        assert str(got) == str(wanted)
        assert len(model.outside) > 0


SIZES: dict[str, Callable[..., Any]] = {
    "a result": lambda x: (x.shape[0], x + 1),
    "an expression": lambda x: x.shape[0] * 2 + 1,
    "numbers up to it": lambda x: torch.arange(x.shape[0])[:, None] + x,
    "a shape": lambda x: torch.fft.fft(x).real.reshape(x.shape[0] * 3),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_arguments_that_change_are_read_off_the_arguments(name: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return SIZES[name](x)

    sizes = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    model = import_program(torch.export.export(Model(), (torch.ones(4, 3),), dynamic_shapes=sizes, strict=False))
    for extent in (4, 7):
        x = torch.arange(3.0 * extent).reshape(extent, 3)
        assert str(model.run(x)) == str(SIZES[name](x))


def test_a_number_of_a_parameter_is_a_constant() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(as_size(self.weight.sum().long())) + x

    model = import_program(torch.export.export(Model(), (torch.ones(1),), strict=False))
    assert torch.equal(model.run(torch.ones(1)), torch.ones(5))


def test_calls_with_effects_run_in_their_order() -> None:
    model = imported(lambda x: torch.linalg.inv(x) * 2, torch.eye(2))
    assert torch.equal(model.run(torch.diag(torch.tensor([2.0, 4.0]))), torch.diag(torch.tensor([1.0, 0.5])))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        model.run(torch.zeros(2, 2))


@pytest.mark.parametrize("power", [0, 1, 3])
def test_an_operand_that_is_written_over_is_not_read(power: int) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    model = imported(lambda x: torch.linalg.matrix_power(x, power) * 2, x)
    assert torch.equal(model.run(x), torch.linalg.matrix_power(x, power) * 2)


def test_sparse_values_pass_between_nodes_outside() -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    model = imported(lambda x: torch.sparse.mm(x.to_sparse(), x + 1), x)
    assert torch.equal(model.run(x), x @ (x + 1))


def test_a_sparse_result_without_elements_keeps_its_layout() -> None:
    x = torch.zeros(0, 3)
    result = imported(lambda x: x.to_sparse(), x).run(x)
    assert result.layout is torch.sparse_coo
    assert result.shape == (0, 3)


EMPTY: dict[str, Callable[..., Any]] = {
    "a sum of nothing": lambda x, y: torch.sum(x, 0) + y,
    "a product over nothing": lambda x, y: x.t() @ x * 2 + y,
    "a product of nothing": lambda x, y: torch.prod(x) * y,
    "a part without elements": lambda x, y: (y[3:] * 2, y * 2),
    "of an empty shape": lambda x, y: (torch.relu(x) + 1, y + 1),
}


@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements_leave_no_node_outside(name: str) -> None:
    x, y = torch.zeros(0, 3), torch.arange(3.0)
    model = imported(EMPTY[name], x, y)
    assert model.outside == ()
    got, wanted = model.run(x, y), EMPTY[name](x, y)
    for one, other in zip(*(it if isinstance(it, tuple) else (it,) for it in (got, wanted)), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


def test_a_value_of_another_shape_than_torch_records_passes_as_it_is() -> None:
    """torch's own kernel returns this loss without dims, its meta function with one."""
    loss = torch.nn.MultiLabelMarginLoss(reduction="none")
    x, target = torch.linspace(-3, 5, 10), torch.tensor([7, 6, 7, 0, 2, 5, 5, 1, 4, 7])
    model = imported(lambda x, target: loss(x, target), x, target)
    assert torch.equal(model.run(x, target), loss(x, target))


@pytest.mark.parametrize("place", [4, -5])
@pytest.mark.parametrize(
    "take", [lambda x, i: x[i] * 2, lambda x, i: torch.gather(x, 0, i) * 2, lambda x, i: x.index_put((i,), x[0]) + 1]
)
def test_an_index_out_of_range_is_refused_as_torch_does(take: Callable[..., Any], place: int) -> None:
    x, i = torch.arange(4.0), torch.tensor([3])
    model = imported(take, x, i)
    assert torch.equal(model.run(x, i), take(x, i))
    with pytest.raises(ProgramError, match=f"got the index {place}, wanted -4 to 3"):
        model.run(x, torch.tensor([place]))


def test_scores_beyond_the_range_of_float16_are_numbers_inside_attention() -> None:
    attended = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 64, dtype=torch.float16) * scale for scale in (100, 100, 1))
    assert (q @ k.transpose(1, 2)).isinf().any()
    torch.testing.assert_close(imported(attended, q, k, v).run(q, k, v), attended(q, k, v))
