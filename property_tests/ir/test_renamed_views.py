"""Programs that use one value under two axis names: searched, verified and emitted as they are."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.renamed_views import rename_views
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.transforms.softmax_shift import drop_shifts


def turned(program: KernelGraph, x: Tensor) -> Tensor:
    return program.transpose(x, (1, 0))


def product_with_itself() -> Graph:
    program = mi.new_kernel_graph()
    x = program.new_input((64, 128), name="X")
    program.mark_output(program.matmul(x, turned(program, x)), name="O")
    return program.graph()


def gram_softmax() -> Graph:
    program = mi.new_kernel_graph()
    x, w = program.new_input((64, 128), name="X"), program.new_input((128, 32), name="W")
    h = program.matmul(x, w)
    program.mark_output(program.softmax(program.matmul(h, turned(program, h)), 1), name="O")
    return program.graph()


def attention_to_itself() -> Graph:
    program = mi.new_kernel_graph()
    x = program.new_input((64, 32), name="X")
    scores = program.matmul(x, turned(program, x)) / 8
    weights = program.exp(program.sub(scores, program.max(scores, 1)))
    program.mark_output(program.matmul(program.div(weights, program.sum(weights, 1)), x), name="O")
    return program.graph()


def residual() -> Graph:
    program = mi.new_kernel_graph()
    x, w = program.new_input((64, 128), name="X"), program.new_input((128, 128), name="W")
    program.mark_output(program.add(x, program.relu(program.matmul(x, w))), name="O")
    return program.graph()


def gram_of_a_sum() -> Graph:
    program = mi.new_kernel_graph()
    x = program.new_input((64, 64), name="X")
    h = program.add(x, turned(program, x))
    program.mark_output(program.matmul(turned(program, h), program.relu(h)), name="O")
    return program.graph()


def two_shapes_of_one() -> Graph:
    program = mi.new_kernel_graph()
    x, y = program.new_input((24,), name="X"), program.new_input((24,), name="Y")
    left = program.sum(program.reshape(program.relu(x), (6, 4)), 1)
    right = program.sum(program.reshape(program.mul(x, y), (4, 6)), 1)
    program.mark_output(program.matmul(left, turned(program, right)), name="O")
    return program.graph()


TWICE = [product_with_itself, gram_softmax, attention_to_itself, residual, gram_of_a_sum, two_shapes_of_one]


def optimized(program: Graph, **options: Any) -> Result:
    return optimize("program", program, Options(**({"device": "cpu", "jobs": 1, "cache": False, "top": 1} | options)))


@pytest.mark.parametrize("build", TWICE)
def test_one_value_under_two_axis_names_is_searched_verified_and_emitted(build: Any, run_program: RunProgram) -> None:
    program = build()
    with pytest.raises(UnsupportedError):
        infer_axes(expand(program))
    result = optimized(program)
    assert not any("not searched" in note for note in result.report.data()["notes"])
    assert result.report.data()["search"]["structures"] > 0
    best = next(candidate for candidate in result.candidates if candidate.fused)
    assert best.proved and best.compile.ok and best.float_check.ok
    assert best.graph.input_names == program.input_names
    generator = np.random.default_rng(0)
    arrays = [(0.2 * generator.standard_normal(kind.shape)).astype(np.float16) for kind in program.input_types]
    wanted = evaluate(program, [array.astype(np.float64) for array in arrays], FloatAlgebra())
    for got, want in zip(run_program(best.source, arrays), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0.05, atol=0.05 * np.abs(want).max())


@pytest.mark.parametrize("build", TWICE)
def test_a_program_under_names_computes_what_the_program_does(build: Any) -> None:
    _computes_the_same(expand(build()))


@st.composite
def square_programs(draw: st.DrawFn) -> Graph:
    """Ops on square matrices, where any two dims may come to share an axis."""
    program = mi.new_kernel_graph()
    values = [program.new_input((4, 4), name=name) for name in "XY"]
    for _ in range(draw(st.integers(1, 6))):
        x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        match draw(st.sampled_from(["matmul", "matmul", "add", "transpose", "relu", "sum"])):
            case "matmul":
                values.append(program.matmul(x, y))
            case "add":
                values.append(program.add(x, y))
            case "transpose":
                values.append(turned(program, x))
            case "relu":
                values.append(program.relu(x))
            case _:
                values.append(program.add(program.sum(x, draw(st.integers(0, 1))), y))
    program.mark_output(values[-1], name="O")
    return program.graph()


@given(square_programs())
def test_any_square_program_is_named_or_refused_and_then_computes_the_same(program: Graph) -> None:
    try:
        rename_views(program)
    except UnsupportedError:
        assume(False)
    _computes_the_same(program)


def _computes_the_same(program: Graph) -> None:
    named = rename_views(program)
    infer_axes(named.program)
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(kind.shape) for kind in program.input_types]
    wanted = evaluate(program, arrays, FloatAlgebra())
    copies = evaluate(named.program, [arrays[place] for place in named.inputs], FloatAlgebra())
    joined = evaluate(named.joined(named.program), arrays, FloatAlgebra())
    for want, copied, at_once in zip(wanted, copies, joined, strict=True):
        np.testing.assert_allclose(copied, want, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(at_once, want, rtol=1e-9, atol=1e-9)


def test_a_program_whose_axes_have_names_stays_as_it_is() -> None:
    program = mi.new_kernel_graph()
    x, w = program.new_input((8, 4)), program.new_input((4, 4))
    program.mark_output(program.relu(program.matmul(x, w)))
    assert rename_views(program.graph()).program == program.graph()
    assert not rename_views(program.graph()).is_renamed


def test_no_more_inputs_are_copied_than_have_two_names() -> None:
    assert rename_views(expand(residual())).inputs == (0, 1, 0)
    assert rename_views(expand(gram_softmax())).inputs == (0, 1, 0)  # W has one name for each dim
    assert rename_views(expand(attention_to_itself())).inputs == (0, 0)


def test_a_shift_that_an_output_can_tell_stays_under_two_names() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((16, 32), name="X")
    scores = program.matmul(x, turned(program, x))
    program.mark_output(program.exp(program.sub(scores, program.max(scores, 1))), name="O")
    primitive = expand(program.graph())
    assert drop_shifts(primitive) == primitive
    told = expand(attention_to_itself())
    assert drop_shifts(told) != told


def test_what_cannot_be_inferred_under_any_names_is_refused_as_before() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((4, 6))
    program.mark_output(program.concat([x, x], 1))
    with pytest.raises(UnsupportedError, match="concat"):
        rename_views(program.graph())
