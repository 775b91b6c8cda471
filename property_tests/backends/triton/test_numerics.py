"""Numbers where kernels shift exponentials: the same function, and nothing leaves its range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton.numerics import shifts_exponentials
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.verify.float_check import float_check
from property_tests.support.hand_written import HAND_WRITTEN

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


def test_the_float_check_marks_a_library_exponential_not_the_kernels_own() -> None:
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


def far_scores(own_softmax: bool) -> Graph:
    """Attention whose scores, products of sums, reach where their exponentials are beyond float16; as kernels write it, or as a
    program that leaves the softmax to a library."""
    shape = (2, 32, 16)
    program = new_kernel_graph()
    q, more_q, k, more_k, v = (program.new_input(shape, name=name) for name in "abcde")
    if own_softmax:
        block = new_threadblock_graph((2, 2))
        query = block.add(*(block.new_input(x, (0, 1)) for x in (q, more_q)))
        key = block.add(*(block.new_input(x, (0, REPLICATED)) for x in (k, more_k)))
        e = block.exp(block.matmul(query, block.transpose(key, (0, 2, 1))))
        block.new_output(block.div(block.matmul(e, block.new_input(v, (0, REPLICATED))), block.sum(e, 2)), (0, 1))
        program.mark_output(program.customized([q, more_q, k, more_k, v], block)[0])
    else:
        scores = program.matmul(program.add(q, more_q), program.transpose(program.add(k, more_k), (0, 2, 1)))
        program.mark_output(program.matmul(program.softmax(scores, 2), v))
    return program.graph()


def test_the_float_check_computes_far_scores_as_kernels_that_shift_do() -> None:
    program, kernels = far_scores(own_softmax=False), far_scores(own_softmax=True)
    assert shifts_exponentials(kernels)
    plain = FloatAlgebra(working=DType.float32, rounds=True)
    assert not all(np.isfinite(x).all() for x in evaluate(kernels, inputs_of(kernels, 0, 1.0), plain, rounded=True))
    check = float_check(program, kernels)
    assert check.ok and not check.overflows


def test_the_float_check_finds_far_scores_that_no_kernel_shifts() -> None:
    program = far_scores(own_softmax=False)
    library = new_kernel_graph()
    q, more_q, k, more_k, v = (
        library.new_input(kind.shape, name=name) for name, kind in zip("abcde", program.input_types, strict=True)
    )
    e = library.exp(library.matmul(library.add(q, more_q), library.transpose(library.add(k, more_k), (0, 2, 1))))
    library.mark_output(library.div(library.matmul(e, v), library.sum(e, 2)))
    assert not shifts_exponentials(library.graph())
    assert not float_check(program, library.graph()).ok
