"""A softmax written with its maximum subtracted is searched as one without, and only where no output can tell."""

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.softmax_shift import drop_shifts, with_shifts


def attention(shifted: bool) -> tuple[KernelGraph, Tensor, Tensor]:
    program = mi.new_kernel_graph()
    q, k = program.new_input((2, 8, 4), name="Q"), program.new_input((2, 4, 16), name="K")
    v = program.new_input((2, 16, 4), name="V")
    scores = program.matmul(q, k)
    exponentials = program.exp(program.sub(scores, program.max(scores, 2)) if shifted else scores)
    return program, exponentials, v


def softmax_attention(shifted: bool) -> Graph:
    program, e, v = attention(shifted)
    program.mark_output(program.div(program.matmul(e, v), program.sum(e, 2)), "O")
    return program.graph()


def test_a_shifted_softmax_is_the_plain_one_before_the_search() -> None:
    assert drop_shifts(softmax_attention(shifted=True)) == softmax_attention(shifted=False)


def test_what_is_given_back_computes_the_same() -> None:
    program = softmax_attention(shifted=True)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(kind.shape) for kind in program.input_types]
    [got], [wanted] = (evaluate(graph, arrays, FloatAlgebra()) for graph in (drop_shifts(program), program))
    np.testing.assert_allclose(got, wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", ["no ratio", "sum over the rows", "another function", "degree two"])
def test_a_shift_that_an_output_can_tell_stays(kind: str) -> None:
    program, e, v = attention(shifted=True)
    match kind:
        case "no ratio":
            program.mark_output(program.matmul(e, v))
        case "sum over the rows":
            program.mark_output(program.div(program.sum(e, 1), program.sum(program.sum(e, 1), 2)))
        case "another function":
            program.mark_output(program.div(e, program.shift(program.sum(e, 2), 1)))
        case "degree two":
            program.mark_output(program.div(program.square(e), program.sum(e, 2)))
    graph = program.graph()
    assert drop_shifts(graph) == graph


def test_a_program_without_exponentials_is_given_back_as_it_is() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((4, 6))
    graph = expand(program.rms_norm(x, 6).builder.graph())  # type: ignore[attr-defined]
    assert drop_shifts(graph) is graph


@pytest.mark.parametrize(("divided_first", "size"), [(False, 1000.0), (True, 1.0)])  # the evaluator shifts no softmax
def test_exponentials_are_in_range_with_their_shifts(divided_first: bool, size: float) -> None:
    program, e, v = attention(shifted=False)
    total = program.sum(e, 2)
    result = program.matmul(program.div(e, total), v) if divided_first else program.div(program.matmul(e, v), total)
    program.mark_output(result, "O")
    plain = program.graph()
    shifted = with_shifts(plain)
    assert [item.op for item in shifted.nodes].count("softmax") == divided_first
    assert drop_shifts(expand(shifted)) == plain
    arrays = [size * np.ones(kind.shape) for kind in plain.input_types]
    [got] = evaluate(shifted, arrays, FloatAlgebra())
    np.testing.assert_allclose(got, size)
