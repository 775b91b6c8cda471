"""Library ops: on arrays what NumPy computes, in the field exact moves and sums, in emitted files the same calls of torch."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir import indexing
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import verify
from property_tests.support.library_programs import LIBRARY_PROGRAMS, arrays_for

NAMES = sorted(LIBRARY_PROGRAMS)


def _meaning(name: str, arrays: list[Any]) -> tuple[Any, ...]:
    wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    result = LIBRARY_PROGRAMS[name].meaning(*wide)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 1000))
def test_a_library_op_means_what_numpy_computes(name: str, seed: int) -> None:
    graph = LIBRARY_PROGRAMS[name].graph("float64")
    arrays = arrays_for(graph, seed)
    results = evaluate(graph, [array.astype(np.float64) for array in arrays], FloatAlgebra())
    for result, wanted, kind in zip(results, _meaning(name, arrays), graph.output_types, strict=True):
        assert result.shape == kind.shape
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_stacked_trials_of_a_library_op_are_its_trials(name: str) -> None:
    graph = LIBRARY_PROGRAMS[name].graph("float64")
    trials = [[array.astype(np.float64) for array in arrays_for(graph, seed)] for seed in range(3)]
    stacked = evaluate(graph, [np.stack(arrays) for arrays in zip(*trials, strict=True)], FloatAlgebra(), stack=1)
    for number, arrays in enumerate(trials):
        for result, wanted in zip(stacked, evaluate(graph, arrays, FloatAlgebra()), strict=True):
            np.testing.assert_allclose(np.broadcast_to(result, (3, *wanted.shape))[number], wanted, rtol=1e-12)


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=3), data=st.data())
def test_indices_move_along_every_dim_as_in_numpy(shape: list[int], data: st.DataObject) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, shape[dim]))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, attributes = generator.standard_normal(shape), {"dim": dim}
    places = generator.permutation(shape[dim])[:count]
    np.testing.assert_array_equal(indexing.gather(np, [x, places], 0, attributes), x.take(places, axis=dim))
    np.testing.assert_array_equal(
        indexing.gather(np, [x, places - shape[dim]], 0, attributes),
        x.take(places, axis=dim),
        "an index counts modulo the extent",
    )
    values = generator.standard_normal([*shape[:dim], count, *shape[dim + 1 :]])
    written = indexing.index_write(np, [x, places, values], 0, attributes)
    np.testing.assert_array_equal(written.take(places, axis=dim), values)
    others = np.setdiff1d(np.arange(shape[dim]), places)
    np.testing.assert_array_equal(written.take(others, axis=dim), x.take(others, axis=dim))
    along = generator.integers(shape[dim], size=[*shape[:dim], 1, *shape[dim + 1 :]])
    scattered = indexing.scatter(np, [x, along, values.take([0], axis=dim)], 0, attributes)
    np.testing.assert_array_equal(np.take_along_axis(scattered, along, dim), values.take([0], axis=dim))
    np.testing.assert_array_equal(
        indexing.take_along_dim(np, [scattered, along], 0, attributes), np.take_along_axis(scattered, along, dim)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_emitted_library_kernel_computes_the_op_in_its_type(run_program: RunProgram, name: str, dtype: str) -> None:
    import torch

    graph = LIBRARY_PROGRAMS[name].graph(dtype)
    arrays = arrays_for(graph, 0)
    source = emit(graph, program=graph)
    tensors = [torch.from_numpy(np.array(array)) for array in arrays]
    with loaded(source) as module:
        has_kernels = bool(getattr(module, "SIGNATURES", ()))
        found = [module.reference(*tensors), run_program(source, arrays) if has_kernels else module.run(*tensors)]
    for place, made in enumerate(found):
        results = made if isinstance(made, tuple | list) else (made,)
        for result, wanted, kind in zip(results, _meaning(name, arrays), graph.output_types, strict=True):
            assert has_kernels or not place or str(result.dtype) == f"torch.{kind.dtype}"
            np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [1, 2])
def test_a_choice_between_numbers_is_verified(factor: int) -> None:
    def chosen(first: int, second: int) -> Graph:
        p = new_kernel_graph()
        x, (a, b) = p.new_input((4, 6), "float32"), (p.new_input((), "float32") for _ in range(2))
        largest = p.reshape(p.max(p.reshape(x, (24,)), 0), ())
        p.mark_output(p.where(p.op("less", largest, p.full((), 3, "float32")), a * first, b * second) * x * Fraction(1, second))
        return p.graph()

    assert verify(chosen(1, 1), chosen(factor, 2)).equal == (factor == 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_runs_of_places_are_the_places(places: list[int]) -> None:
    found = indexing.runs(places)
    assert [first + step * i for first, step, count in found for i in range(count)] == places
    assert all(count > 1 or step == 1 for _, step, count in found)


def _program(*ops: Any) -> tuple[Graph, ...]:
    """Programs of x [6, 4], y [6, 4], indices [3] and others [3]."""
    graphs = []
    for op in ops:
        graph = new_kernel_graph()
        x, y = (graph.new_input((6, 4), "float32", name=name) for name in "xy")
        i, j = (graph.new_input((3,), "int64", name=name) for name in "ij")
        graph.mark_output(op(graph, x, y, i, j))
        graphs.append(graph.graph())
    return tuple(graphs)


Op = Any
EQUAL: dict[str, tuple[Op, Op]] = {
    "a function of rows, rows of a function": (
        lambda g, x, y, i, j: g.exp(g.gather(x, i)) * 2,
        lambda g, x, y, i, j: g.gather(g.exp(x) * 2, i),
    ),
    "sums of rows, rows of sums": (
        lambda g, x, y, i, j: g.gather(x + y, i),
        lambda g, x, y, i, j: g.gather(x, i) + g.gather(y, i),
    ),
    "what was written is read": (
        lambda g, x, y, i, j: g.gather(g.index_write(x, i, g.gather(x, i)), j),
        lambda g, x, y, i, j: g.gather(x, j),
    ),
    "a sum of running sums": (lambda g, x, y, i, j: g.cumsum(x + y, 0), lambda g, x, y, i, j: g.cumsum(x, 0) + g.cumsum(y, 0)),
    "order does not change a sum": (lambda g, x, y, i, j: g.sum(g.sort(x, 0)[0], 0), lambda g, x, y, i, j: g.sum(x, 0)),
    "sorted in two parts": (
        lambda g, x, y, i, j: g.topk(x, 3, 0)[0],
        lambda g, x, y, i, j: g.split(g.sort(x, 0, descending=True)[0], 2, 0)[0],
    ),
    "equal operands, equal order": (
        lambda g, x, y, i, j: g.gather(g.argsort(x + y, 0), i),
        lambda g, x, y, i, j: g.gather(g.argsort(y + x, 0), i),
    ),
}
DIFFERENT: dict[str, tuple[Op, Op]] = {
    "other indices": (lambda g, x, y, i, j: g.gather(x, i), lambda g, x, y, i, j: g.gather(x, j)),
    "another table": (lambda g, x, y, i, j: g.gather(x, i), lambda g, x, y, i, j: g.gather(y, i)),
    "another place": (lambda g, x, y, i, j: g.gather(x, i), lambda g, x, y, i, j: g.gather(x, i + 1)),
    "another order of writing": (
        lambda g, x, y, i, j: g.index_write(g.index_write(x, i, g.gather(y, j)), j, g.gather(y, i)),
        lambda g, x, y, i, j: g.index_write(g.index_write(x, j, g.gather(y, i)), i, g.gather(y, j)),
    ),
    "a product of running sums": (
        lambda g, x, y, i, j: g.cumsum(x * y, 0),
        lambda g, x, y, i, j: g.cumsum(x, 0) * g.cumsum(y, 0),
    ),
    "running sums along another dim": (lambda g, x, y, i, j: g.cumsum(x, 0), lambda g, x, y, i, j: g.cumsum(x, 1)),
    "the other direction": (lambda g, x, y, i, j: g.sort(x, 0)[0], lambda g, x, y, i, j: g.sort(x, 0, descending=True)[0]),
    "the order of another": (lambda g, x, y, i, j: g.argsort(x, 0), lambda g, x, y, i, j: g.argsort(y, 0)),
}


def _images(*ops: Any) -> tuple[Graph, ...]:
    """Programs of images x and y [2, 4, 5, 5], a weight w [4, 4, 3, 3], a numbers of channels m [4]."""
    graphs = []
    for op in ops:
        graph = new_kernel_graph()
        x, y = (graph.new_input((2, 4, 5, 5), "float32", name=name) for name in "xy")
        w, m = graph.new_input((4, 4, 3, 3), "float32", name="w"), graph.new_input((4,), "float32", name="m")
        graph.mark_output(op(graph, x, y, w, m))
        graphs.append(graph.graph())
    return tuple(graphs)


def _by_channel(g: KernelGraph, m: Tensor) -> Tensor:
    return g.reshape(m, (4, 1, 1, 1))


def _folded(g: KernelGraph, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    """A batch norm of mean m, variance m², weight m and bias m in the weight of the convolution before it."""
    factor = g.mul(m, g.rsqrt(g.square(m) + 1))
    z = g.conv2d(x, w * _by_channel(g, factor), pads=1)
    return z + g.reshape(m - m * factor, (4, 1, 1))


IMAGES_EQUAL: dict[str, tuple[Op, Op]] = {
    "linear in the image": (
        lambda g, x, y, w, m: g.conv2d(x + y, w, 2, 1),
        lambda g, x, y, w, m: g.conv2d(x, w, 2, 1) + g.conv2d(y, w, 2, 1),
    ),
    "the identity": (
        lambda g, x, y, w, m: g.conv2d(x, g.delta_kernel(4, 3, dtype="float32"), pads=1),
        lambda g, x, y, w, m: x + y - y,
    ),
    "the identity of groups": (
        lambda g, x, y, w, m: g.conv2d(x, g.delta_kernel(4, (3, 5), 2, "float32"), pads=(1, 2), groups=2) * 1,
        lambda g, x, y, w, m: x + y - y,
    ),
    "a residual in the weight": (
        lambda g, x, y, w, m: x + g.conv2d(x, w, pads=1),
        lambda g, x, y, w, m: g.conv2d(x, w + g.delta_kernel(4, 3, dtype="float32"), pads=1),
    ),
    "merged convolutions": (
        lambda g, x, y, w, m: g.concat([g.conv2d(x, w), g.conv2d(x, w * 2)], 1),
        lambda g, x, y, w, m: g.conv2d(x, g.concat([w, w * 2], 0)),
    ),
    "merged images": (
        lambda g, x, y, w, m: g.conv2d(x, w) + g.conv2d(y, w * 2),
        lambda g, x, y, w, m: g.conv2d(g.concat([x, y], 1), g.concat([w, w * 2], 1)),
    ),
    "an enlarged kernel": (
        lambda g, x, y, w, m: g.conv2d(x, g.slice(w, 3, 1, 2), pads=(1, 0)),
        lambda g, x, y, w, m: g.conv2d(x, g.enlarge(g.slice(w, 3, 1, 2), 3), pads=1),
    ),
    "pads of a call of its own": (
        lambda g, x, y, w, m: g.conv2d(x, w, pads=(1, 0, 2, 1)),
        lambda g, x, y, w, m: g.conv2d(g.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1))), w),
    ),
    "batch norm in the weight": (
        lambda g, x, y, w, m: g.batch_norm(g.conv2d(x, w, pads=1), m, g.square(m), m, m, eps=1),
        lambda g, x, y, w, m: _folded(g, x, w, m),
    ),
    "relu of maxima, maxima of relu": (
        lambda g, x, y, w, m: g.relu(g.max_pool2d(x, 3, 1, 1)),
        lambda g, x, y, w, m: g.max_pool2d(g.relu(x), 3, 1, 1),
    ),
    "maxima of maxima": (
        lambda g, x, y, w, m: g.max_pool2d(g.max_pool2d(x, 3, 1, 1), 3, 1, 1),
        lambda g, x, y, w, m: g.max_pool2d(x, 5, 1, 2),
    ),
    "means are a convolution": (
        lambda g, x, y, w, m: g.avg_pool2d(x, 3, 2, 1),
        lambda g, x, y, w, m: g.conv2d(x, g.full((4, 1, 3, 3), Fraction(1, 9), "float32"), 2, 1, groups=4),
    ),
    "means without padding": (
        lambda g, x, y, w, m: g.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        lambda g, x, y, w, m: g.avg_pool2d(x, 3, 1, 1) / g.avg_pool2d(g.ones((1, 1, 5, 5), "float32"), 3, 1, 1),
    ),
    "flips": (
        lambda g, x, y, w, m: g.flip(g.conv2d(x, w, pads=1), (2, 3)),
        lambda g, x, y, w, m: g.conv2d(g.flip(x, (2, 3)), g.flip(w, (2, 3)), pads=1),
    ),
}
IMAGES_DIFFERENT: dict[str, tuple[Op, Op]] = {
    "another border": (
        lambda g, x, y, w, m: g.conv2d(x, w, pads=1),
        lambda g, x, y, w, m: g.pad(g.conv2d(x, w), ((0, 0), (0, 0), (1, 1), (1, 1))),
    ),
    "other pads": (lambda g, x, y, w, m: g.conv2d(x, w, 1, (1, 0)), lambda g, x, y, w, m: g.conv2d(x, w, 1, (2, 0, 0, 0))),
    "one corner": (lambda g, x, y, w, m: g.conv2d(x, w, 2, (1, 1)), lambda g, x, y, w, m: g.conv2d(x, w, 2, (0, 0, 2, 2))),
    "convolution instead of correlation": (
        lambda g, x, y, w, m: g.conv2d(x, w),
        lambda g, x, y, w, m: g.conv2d(x, g.flip(w, (2, 3))),
    ),
    "padding among maxima": (
        lambda g, x, y, w, m: g.max_pool2d(x, 3, 1, 1),
        lambda g, x, y, w, m: g.max_pool2d(g.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), 3, 1),
    ),
    "padding in the count": (
        lambda g, x, y, w, m: g.avg_pool2d(x, 3, 1, 1),
        lambda g, x, y, w, m: g.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    ),
    "relu of means": (lambda g, x, y, w, m: g.relu(g.avg_pool2d(x, 3)), lambda g, x, y, w, m: g.avg_pool2d(g.relu(x), 3)),
    "maxima of a sum": (
        lambda g, x, y, w, m: g.max_pool2d(x + y, 3),
        lambda g, x, y, w, m: g.max_pool2d(x, 3) + g.max_pool2d(y, 3),
    ),
    "another eps": (
        lambda g, x, y, w, m: g.batch_norm(x, m, g.square(m), eps=1),
        lambda g, x, y, w, m: g.batch_norm(x, m, g.square(m), eps=2),
    ),
}


@pytest.mark.parametrize("name", sorted(IMAGES_EQUAL))
def test_convolutions_and_pooling_keep_their_laws_in_the_field(name: str) -> None:
    assert verify(*_images(*IMAGES_EQUAL[name])).equal


@pytest.mark.parametrize("name", sorted(IMAGES_DIFFERENT))
def test_a_wrong_law_of_images_is_not_equal(name: str) -> None:
    assert str(verify(*_images(*IMAGES_DIFFERENT[name])).verdict) == "not equal"


def test_windows_over_an_undefined_element_are_undefined() -> None:
    graph = new_kernel_graph()
    x, ones, w = (graph.new_input(shape, "float32") for shape in ((1, 1, 4, 4), (1, 1, 3, 4), (2, 1, 3, 3)))
    holed = x / graph.pad(ones, ((0, 0), (0, 0), (1, 0), (0, 0)))  # the first row is divided by 0
    below = graph.pad(graph.slice(w, 2, 0, 2), ((0, 0), (0, 0), (0, 1), (0, 0)))
    for z in (
        graph.conv2d(holed, w, pads=1),
        graph.max_pool2d(holed, 3, 1, 1),
        graph.avg_pool2d(holed, (3, 1), (2, 1), (1, 0)),
        graph.conv2d(x, w / below, pads=(1, 0, 0, 0)),
        graph.pad(holed, ((0, 0), (0, 0), (0, 0), (1, 0)), 1),
        graph.flip(holed, 2),
    ):
        graph.mark_output(z)
    program, algebra = graph.graph(), FieldAlgebra.of(0, 0)
    inputs = [algebra.input(place, kind.shape) for place, kind in enumerate(program.input_types)]
    masks = [component.undefined for component in algebra.read(evaluate(program, inputs, algebra))]
    rows = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0], [1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1]]
    for mask, row in zip(masks, rows, strict=True):
        wanted = np.broadcast_to(np.array(row, bool)[:, None], mask.shape).copy()
        if mask.shape[-1] == 5:
            wanted[..., 0] = False  # padding is defined
        np.testing.assert_array_equal(mask, wanted)


def test_convolutions_and_means_of_windows_are_rational() -> None:
    [program] = _images(lambda g, x, y, w, m: g.avg_pool2d(g.conv2d(g.pad(g.flip(x, 3), ((0, 0),) * 4), w), 2))
    assert verify(program, program).error_bound is not None


@pytest.mark.parametrize("name", sorted(EQUAL))
def test_moves_sums_and_orders_keep_their_laws_in_the_field(name: str) -> None:
    assert verify(*_program(*EQUAL[name])).equal


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_a_wrong_use_of_indices_or_orders_is_not_equal(name: str) -> None:
    assert str(verify(*_program(*DIFFERENT[name])).verdict) == "not equal"


def test_no_theorem_bounds_the_error_of_moves_by_indices() -> None:
    gathered, summed = _program(lambda g, x, y, i, j: g.gather(x, i), lambda g, x, y, i, j: g.cumsum(x, 0))
    assert verify(gathered, gathered).error_bound is None
    assert verify(summed, summed).error_bound is not None


def test_the_whole_numbers_of_a_program_survive_rounding() -> None:
    graph = new_kernel_graph()
    table, i = graph.new_input((3000, 2), "float16"), graph.new_input((4,), "int64")
    program = _marked(graph, graph.gather(table, i))
    arrays = [np.arange(6000).reshape(3000, 2) / 8, np.array([2999, 2049, 0, 2051])]
    [rows] = evaluate(program, [array.astype(np.float32) for array in arrays], FloatAlgebra(np, rounds=True))
    np.testing.assert_array_equal(rows, arrays[0].astype(np.float16)[arrays[1]])


def _marked(graph: KernelGraph, x: Tensor) -> Graph:
    graph.mark_output(x)
    return graph.graph()
