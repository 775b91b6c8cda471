"""Library ops: on arrays what NumPy computes, in the field exact moves and sums, in emitted files the same calls of torch."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
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
def test_an_emitted_library_kernel_computes_the_op_in_its_type(name: str, dtype: str) -> None:
    import torch

    graph = LIBRARY_PROGRAMS[name].graph(dtype)
    arrays = arrays_for(graph, 0)
    module: dict[str, Any] = {}
    exec(emit(graph, program=graph), module)
    tensors = [torch.from_numpy(np.array(array)) for array in arrays]
    for function in ("run", "reference"):
        results = module[function](*tensors)
        for result, wanted, kind in zip(
            results if isinstance(results, tuple) else (results,), _meaning(name, arrays), graph.output_types, strict=True
        ):
            assert function == "reference" or str(result.dtype) == f"torch.{kind.dtype}"
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)


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
    "a sum of running sums": (
        lambda g, x, y, i, j: g.cumsum(x + y, 0),
        lambda g, x, y, i, j: g.cumsum(x, 0) + g.cumsum(y, 0),
    ),
    "order does not change a sum": (
        lambda g, x, y, i, j: g.sum(g.sort(x, 0)[0], 0),
        lambda g, x, y, i, j: g.sum(x, 0),
    ),
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
