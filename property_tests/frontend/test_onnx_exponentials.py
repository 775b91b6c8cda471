"""Exported functions with exponentials of arguments in the thousands: what kernels compute, not ∞ or 0/0."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.ir.graph import Graph
from property_tests.frontend.test_onnx_export import ran

SHAPE = (4, 16)
Write = Callable[[Any, Any, Any], Any]  # an expression of a block graph, scores and values
Numbers = Callable[[Any, Any], Any]


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def logsumexp(x: Any) -> Any:
    top = x.max(1, keepdims=True)
    return top + np.log(np.exp(x - top).sum(1, keepdims=True))


BODIES: dict[str, tuple[Write, Numbers]] = {
    "softmax": (lambda b, x, v: b.div(b.exp(x), b.sum(b.exp(x), 1)), lambda x, v: softmax(x)),
    "log_softmax": (lambda b, x, v: x - b.log(b.sum(b.exp(x), 1)), lambda x, v: x - logsumexp(x)),
    "logsumexp": (lambda b, x, v: b.log(b.sum(b.exp(x), 1)), lambda x, v: logsumexp(x)),
    "attention": (lambda b, x, v: b.div(b.matmul(b.exp(x), v), b.sum(b.exp(x), 1)), lambda x, v: softmax(x) @ v),
    "a scaled sum of two": (
        lambda b, x, v: b.div(b.exp(x) * 2 + b.exp(x - 1), b.sum(b.exp(x), 1)),
        lambda x, v: (2 + np.exp(-1)) * softmax(x),
    ),
    "roots": (lambda b, x, v: b.sqrt(b.exp(x)) * b.rsqrt(b.sum(b.exp(x), 1)), lambda x, v: np.sqrt(softmax(x))),
    "a choice": (
        lambda b, x, v: b.div(b.where(b.less(x, 0), b.exp(x), 0), b.sum(b.where(b.less(x, 0), b.exp(x), 0), 1)),
        lambda x, v: softmax(np.where(x < 0, x, -np.inf)),
    ),
    "a view": (
        lambda b, x, v: b.div(b.transpose(b.exp(x), (1, 0)), b.sum(b.transpose(b.exp(x), (1, 0)), 0)),
        lambda x, v: softmax(x).T,
    ),
    "no ratio": (lambda b, x, v: b.exp(x * 0.001) + 1, lambda x, v: np.exp(x * 0.001) + 1),
}


def program(write: Write) -> Graph:
    g = mi.new_kernel_graph()
    x, v = g.new_input(SHAPE, "float32", "x"), g.new_input((SHAPE[1], 8), "float32", "v")
    block = mi.new_threadblock_graph((1,))
    made = write(block, block.new_input(x, (-1,)), block.new_input(v, (-1,)))
    block.new_output(made, (-1,))
    g.mark_output(*g.customized([x, v], block), name="y")
    return g.graph()


def arrays(scale: float) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return (scale * random.standard_normal(SHAPE)).astype("f"), random.standard_normal((SHAPE[1], 8)).astype("f")


@pytest.mark.parametrize("scale", [1.0, 3e3])
@pytest.mark.parametrize("name", BODIES)
def test_a_function_of_exponentials_is_right_for_arguments_in_the_thousands(name: str, scale: float) -> None:
    write, value = BODIES[name]
    x, v = arrays(scale)
    [got] = ran(mi.onnx.export_model(program(write)), {"x": x, "v": v})
    np.testing.assert_allclose(got, value(x.astype(float), v.astype(float)), rtol=1e-3, atol=1e-4)


def test_a_row_without_finite_scores_and_numbers_that_are_none_stay_none() -> None:
    write, _ = BODIES["softmax"]
    x, v = arrays(1.0)
    x[0], x[1, 0], x[2, 0] = -np.inf, np.nan, np.inf
    [got] = ran(mi.onnx.export_model(program(write)), {"x": x, "v": v})
    assert np.isnan(got[:2]).all() and not np.isfinite(got[2]).all() and np.isfinite(got[3]).all()


PROGRAMS: dict[str, tuple[Write, Numbers]] = {
    name: BODIES[name] for name in ("softmax", "log_softmax", "logsumexp", "attention")
}
PROGRAMS["two of one exponential"] = (
    lambda g, x, v: g.div(g.exp(x), g.sum(g.exp(x), 1)) + g.log(g.sum(g.exp(x), 1)) * 0.001,
    lambda x, v: softmax(x) + logsumexp(x) * 0.001,
)


@pytest.mark.parametrize("scale", [1.0, 3e3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_exponentials_is_right_for_arguments_in_the_thousands(name: str, scale: float) -> None:
    write, value = PROGRAMS[name]
    g = mi.new_kernel_graph()
    g.mark_output(write(g, g.new_input(SHAPE, "float32", "x"), g.new_input((SHAPE[1], 8), "float32", "v")), name="y")
    x, v = arrays(scale)
    [got] = ran(mi.onnx.export_model(g), {"x": x, "v": v})
    np.testing.assert_allclose(got, value(x.astype(float), v.astype(float)), rtol=1e-3, atol=1e-4)
