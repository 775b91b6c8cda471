"""Numbers where kernels shift exponentials: the same function, and nothing leaves its range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluate import evaluate
from mirage_eg.backends.floats import FloatAlgebra
from mirage_eg.backends.shifted import ShiftedFloats, shifts_exponentials
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.verify import float_check
from property_tests.hand_written import HAND_WRITTEN

ATTENTION = {name: make(DType.float16).mugraph for name, make in HAND_WRITTEN.items() if name.startswith("attention")}


def inputs_of(graph: Graph, seed: int, magnitude: float) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [(magnitude * random.standard_normal(kind.shape)).astype(np.float32) for kind in graph.input_types]


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(HAND_WRITTEN)), seed=st.integers(0, 2**32 - 1))
def test_shifting_changes_no_number_that_is_in_range(name: str, seed: int) -> None:
    graph = HAND_WRITTEN[name](DType.float16).mugraph
    given_inputs = inputs_of(graph, seed, 0.5)
    algebra = ShiftedFloats(FloatAlgebra(working=DType.float64))
    for got, want in zip(evaluate(graph, given_inputs, algebra), evaluate(graph, given_inputs, FloatAlgebra()), strict=True):
        np.testing.assert_allclose(algebra.number(got), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ATTENTION)
def test_shifted_attention_stays_in_range_where_plain_exponentials_leave_it(name: str) -> None:
    graph = ATTENTION[name]
    given_inputs = inputs_of(graph, 0, 100.0)  # scores to some 10⁴
    plain = FloatAlgebra(working=DType.float32, rounds=True)
    assert shifts_exponentials(graph)
    assert all(np.isfinite(ShiftedFloats(plain).number(x)).all() for x in evaluate(graph, given_inputs, ShiftedFloats(plain)))
    assert not all(np.isfinite(x).all() for x in evaluate(graph, given_inputs, plain))


def test_what_overflows_for_another_reason_does_so_shifted_too() -> None:
    graph = ATTENTION["attention"]
    q, k, v = inputs_of(graph, 0, 1.0)
    algebra = ShiftedFloats(FloatAlgebra(working=DType.float32, rounds=True))
    [got] = evaluate(graph, [q, k, v * 1e6], algebra)  # the output is of float16
    assert not np.isfinite(algebra.number(got)).all()


def test_the_float_check_marks_a_librarys_exponential_and_not_the_kernels_own() -> None:
    written = new_kernel_graph()
    x = written.new_input((4, 512), name="x")
    written.mark_output(written.softmax(x, 1))
    plain = new_kernel_graph()
    x = plain.new_input((4, 512), name="x")
    exponential = plain.exp(x)
    plain.mark_output(plain.div(exponential, plain.reduction(exponential, 1)))
    assert not float_check(written.graph(), written.graph()).overflows
    assert float_check(written.graph(), plain.graph()).overflows


@pytest.mark.parametrize("name", ["attention", "attention, split", "attention, split and looped"])
def test_the_float_check_of_kernels_that_shift_marks_no_overflow(name: str) -> None:
    graph = ATTENTION[name]
    check = float_check(graph, graph)
    assert not check.overflows and check.ok
