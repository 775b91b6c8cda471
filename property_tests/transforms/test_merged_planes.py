"""Rows and columns of images are one dim where every op treats them alike."""

from math import prod

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.transforms.merged_planes import merged_planes
from property_tests.support.hand_written import inputs_of, worst


def per_channel(p: KernelGraph, name: str, channels: int) -> Tensor:
    return p.reshape(p.new_input((channels,), "float32", name), (channels, 1, 1))


def pointwise(images: int = 1, rows: int = 6, columns: int = 5) -> Graph:
    """relu(W relu(x + b) + c + r) for images x and r: a 1×1 convolution with what is around it."""
    p = new_kernel_graph()
    x, r = (p.new_input((images, channels, rows, columns), "float32", name) for name, channels in (("x", 4), ("r", 8)))
    plane = p.reshape(p.relu(x + per_channel(p, "b", 4)), (images, 4, rows * columns))
    product = p.reshape(p.new_input((8, 4), "float32", "W") @ plane, (images, 8, rows, columns))
    p.mark_output(p.relu(product + per_channel(p, "c", 8) + r))
    p.mark_output(p.mean(plane, 2))
    return p.graph()


@pytest.mark.parametrize(("step", "merges"), [(5, True), (6, False)])
def test_planes_of_an_input_with_strides_are_merged_where_they_follow(step: int, merges: bool) -> None:
    p = new_kernel_graph()
    x = p.new_input((2, 3, 4, 5), "float32", "x", (3 * 4 * step, 4 * step, step, 1))
    p.mark_output(p.relu(x + p.new_input((3, 1, 1), "float32", "b")))
    merged = merged_planes(p.graph())
    assert (merged is not None) is merges
    if merged is not None:
        given = merged.program.inputs[0]
        assert (given["shape"], given["strides"]) == ((2, 3, 20), (60, 20, 1))
        arrays = inputs_of(p.graph())
        joined = merged.joined(merged.program)
        assert worst(evaluate(joined, arrays, FloatAlgebra()), evaluate(p.graph(), arrays, FloatAlgebra())) == 0


@pytest.mark.parametrize("images", [1, 2])
def test_a_pointwise_convolution_has_planes_of_one_dim(images: int) -> None:
    program = pointwise(images)
    merged = merged_planes(program)
    assert merged is not None
    assert max(len(kind.shape) for kind in merged.program.types) == 3
    assert all(kind.shape[-1] in (1, 4, 8, 30) for kind in merged.program.types)
    arrays = inputs_of(program)
    assert (
        worst(evaluate(merged.joined(merged.program), arrays, FloatAlgebra()), evaluate(program, arrays, FloatAlgebra())) == 0
    )


def test_planes_are_merged_as_those_of_another_size_are() -> None:
    large, small = pointwise(2), pointwise(1, 1, 7)
    merged = merged_planes(small, large)
    assert merged is not None
    assert [kind.shape for kind in merged.program.input_types][:2] == [(1, 4, 7), (1, 8, 7)]


def by_rows(p: KernelGraph, x: Tensor) -> Tensor:
    return p.max(x, 3)


def with_columns(p: KernelGraph, x: Tensor) -> Tensor:
    return x + p.new_input((5,), "float32", "b")


def transposed(p: KernelGraph, x: Tensor) -> Tensor:
    return p.transpose(x, (0, 1, 3, 2))


@pytest.mark.parametrize("body", [by_rows, with_columns, transposed])
def test_planes_whose_rows_an_op_has_alone_are_left(body: object) -> None:
    p = new_kernel_graph()
    x = p.new_input((2, 4, 6, 5), "float32", "x")
    p.mark_output(body(p, x))  # type: ignore[operator]
    p.mark_output(p.relu(p.reshape(x, (2, 4, 30))))
    assert merged_planes(p.graph()) is None


@pytest.mark.parametrize("plane", [(6, 5), (3, 6, 5)])
def test_what_is_elementwise_along_planes_has_them_as_one_dim(plane: tuple[int, ...]) -> None:
    p = new_kernel_graph()
    x = p.new_input((2, 4, *plane), "float32", "x")
    bias = p.reshape(p.new_input((4,), "float32", "b"), (4, *(1 for _ in plane)))
    p.mark_output(p.max(p.relu(x + bias), 1))
    merged = merged_planes(p.graph())
    assert merged is not None and merged.program.input_types[0].shape == (2, 4, prod(plane))
    arrays = inputs_of(p.graph())
    assert (
        worst(evaluate(merged.joined(merged.program), arrays, FloatAlgebra()), evaluate(p.graph(), arrays, FloatAlgebra())) == 0
    )


@pytest.mark.parametrize(("left", "right"), [((2, 3, 4, 5), (2, 3, 5, 6)), ((7, 2, 3, 4, 5), (7, 2, 3, 5, 6))])
def test_batch_dims_of_products_with_more_dims_than_a_grid_are_one(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    p = new_kernel_graph()
    x, w = p.new_input(left, "float32", "x"), p.new_input(right, "float32", "w")
    b = p.new_input((6,), "float32", "b")
    p.mark_output(p.softmax(p.relu(x @ w) + b, len(left) - 1))
    program = expand(p.graph())
    merged = merged_planes(program)
    assert merged is not None and merged.program.input_types[0].shape == (prod(left[:-2]), 4, 5)
    arrays = inputs_of(program)
    assert (
        worst(evaluate(merged.joined(merged.program), arrays, FloatAlgebra()), evaluate(program, arrays, FloatAlgebra())) == 0
    )


def factors_of_the_first_dim(p: KernelGraph, x: Tensor) -> Tensor:
    return x @ p.new_input((2, 1, 5, 6), "float32", "w")


def summed_over_one_of_them(p: KernelGraph, x: Tensor) -> Tensor:
    return p.sum(x @ p.new_input((2, 3, 5, 6), "float32", "w"), 0)


def of_as_many_dims_as_a_grid(p: KernelGraph, x: Tensor) -> Tensor:
    return p.sum(x @ p.new_input((2, 3, 5, 6), "float32", "w"), 3)


@pytest.mark.parametrize("body", [factors_of_the_first_dim, summed_over_one_of_them, of_as_many_dims_as_a_grid])
def test_batch_dims_that_differ_or_fit_a_grid_are_left(body: object) -> None:
    p = new_kernel_graph()
    p.mark_output(body(p, p.new_input((2, 3, 4, 5), "float32", "x")))  # type: ignore[operator]
    assert merged_planes(expand(p.graph())) is None


def test_what_is_reduced_as_one_dim_is_one_dim_of_the_inputs() -> None:
    p = new_kernel_graph()
    x, y = (p.new_input((6, 5), "float32", name) for name in "xy")
    p.mark_output(p.sum(p.reshape(p.abs(x - y), (30,)), 0))
    merged = merged_planes(p.graph())
    assert merged is not None and [kind.shape for kind in merged.program.input_types] == [(30,), (30,)]


def test_dims_of_which_one_is_reduced_are_left() -> None:
    p = new_kernel_graph()
    p.mark_output(p.sum(p.abs(p.new_input((6, 5), "float32", "x")), 1))
    assert merged_planes(p.graph()) is None


def test_convolutions_keep_their_planes() -> None:
    p = new_kernel_graph()
    x = p.new_input((2, 4, 6, 5), "float32", "x")
    p.mark_output(p.relu(p.conv2d(x, p.new_input((4, 4, 3, 3), "float32", "W", weight=True))))
    assert merged_planes(p.graph()) is None


def test_a_pointwise_convolution_is_searched_with_merged_planes() -> None:
    p = new_kernel_graph()
    x = p.new_input((1, 8, 6, 5), "float16", "x")
    rows = p.max_pool2d(x, window=(2, 2), strides=(2, 2))
    product = p.conv2d(rows, p.new_input((8, 8, 1, 1), "float16", "W", weight=True))
    p.mark_output(p.max_pool2d(p.relu(product) + rows, window=(2, 2), strides=(1, 1)))
    best = optimize("pointwise", p.graph(), Options(device="cpu", gpu="h200", cache=False, top=1)).candidates[0]
    assert [[kind.shape for kind in block.output_types] for block in best.graph.blocks] == [[(1, 8, 6)]]


@pytest.mark.parametrize(("last", "merges"), [(9, True), (16, False), (35, False)])
def test_short_rows_of_elementwise_programs_are_one_dim_with_those_before(last: int, merges: bool) -> None:
    p = new_kernel_graph()
    w, factor = p.new_input((6, 5, last), "float16", "w"), p.new_input((6, 1, 1), "float16", "s")
    p.mark_output(p.exp(w * factor))
    merged = merged_planes(p.graph())
    assert (merged is not None) is merges
    if merged is not None:
        assert merged.program.output_types[0].shape == (6, 5 * last)
        arrays = inputs_of(p.graph())
        joined = merged.joined(merged.program)
        assert worst(evaluate(joined, arrays, FloatAlgebra()), evaluate(p.graph(), arrays, FloatAlgebra())) == 0


def test_a_short_row_with_numbers_of_its_own_stays() -> None:
    p = new_kernel_graph()
    p.mark_output(p.new_input((6, 5, 9), "float16", "w") * p.new_input((5, 1), "float16", "s"))
    assert merged_planes(p.graph()) is None
