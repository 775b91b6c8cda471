"""The logarithm of a softmax is finite however far a score is below the others, in each way of writing it."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.random_rounding import rounding_spread
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.numerics import as_written, shifts_exponentials
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.logarithms import without_far_logarithms
from mirage_eg.verify.compare import SPREAD
from mirage_eg.verify.reference import ROUNDOFF
from property_tests.support.hand_written import ROUNDING, block_program, worst
from property_tests.support.parameters import few

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "log(softmax(x))": lambda p, x: p.log(p.softmax(x, 1)),
    "x − log Σ exp(x)": lambda p, x: p.sub(x, p.log(p.sum(p.exp(x), 1))),
    "log(exp(x)/Σ exp(x))": lambda p, x: p.log(p.div(p.exp(x), p.sum(p.exp(x), 1))),
    "log Σ exp(x) − log exp(x)": lambda p, x: p.scale(p.sub(p.log(p.sum(p.exp(x), 1)), p.log(p.exp(x))), -1),
    "of the shifted": lambda p, x: p.log(p.softmax(p.sub(x, p.max(x, 1)), 1)),
    "of a transpose": lambda p, x: p.transpose(p.log(p.transpose(p.softmax(x, 1), (1, 0))), (1, 0)),
    "of a root": lambda p, x: p.scale(p.log(p.sqrt(p.softmax(x, 1))), 2),
    "of an inverse": lambda p, x: p.scale(p.log(p.div(p.sum(p.exp(x), 1), p.exp(x))), -1),
    "of a product": lambda p, x: p.log(p.mul(p.exp(x), p.pow(p.sum(p.exp(x), 1), -1))),
}


def far_scores(rows: int, classes: int) -> Any:
    """Scores of which a quarter is 300 below and one of each row is 300 above the others, exact in float16."""
    random = np.random.default_rng(5)
    scores = np.round(16 * random.standard_normal((rows, classes))) / 16
    scores[:, ::4] -= 300
    scores[:, 1] += 300
    return scores


def log_softmax(x: Any) -> Any:
    shifted = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(8, 16), (3, 50)])
def test_a_kernel_with_the_logarithm_of_a_softmax_is_finite(run_program: RunProgram, way: str, shape: tuple[int, int]) -> None:
    x, graph = far_scores(*shape), block_program(shape, WAYS[way])
    assert shifts_exponentials(graph)
    assert worst(run_program(emit(graph), [x]), [log_softmax(x)]) < ROUNDING["float32"]
    algebra = ShiftedFloats(FloatAlgebra(working=DType.float32, rounds=True))
    assert worst([algebra.number(y) for y in evaluate(as_written(graph), [x], algebra)], [log_softmax(x)]) < ROUNDING["float32"]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param((128, 50), "float16", id="shape0-float16"),
        pytest.param((128, 50), "float32", id="shape0-float32"),
        pytest.param((4, 32000), "float16", id="shape1-float16"),
        pytest.param((4, 32000), "float32", id="shape1-float32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("way", few([*WAYS][:3], 1))
def test_what_stands_first_for_a_log_softmax_is_finite(
    run_program: RunProgram, way: str, shape: tuple[int, int], dtype: str
) -> None:
    program = mi.new_kernel_graph()
    program.mark_output(WAYS[way](program, program.new_input(shape, dtype, "x")))
    first = mi.superoptimize(program, top=2)[0]
    x = far_scores(*shape)
    assert first.candidate.fused and first.candidate.verdict.verdict == "equal" and not first.candidate.float_check.overflows
    assert worst(run_program(first.source, [x]), [log_softmax(x)]) < ROUNDING[dtype]


def test_the_spread_of_a_logarithm_covers_what_subnormal_numbers_lose() -> None:
    x = np.linspace(-744.0, -600.0, 2000)
    program = mi.new_kernel_graph()
    program.log(program.exp(program.new_input(x.shape, "float64", "x")))
    [made] = evaluate(program.graph(), [x], FloatAlgebra())
    [spread], _ = rounding_spread(program.graph(), [x], [made], ROUNDOFF, FloatAlgebra())
    lost, unknown = np.abs(made - x), np.isnan(spread)  # unknown: a sample of exp(x) is not above 0
    assert (lost <= SPREAD * spread + 1e-12)[~unknown].all() and lost.max() > 1e-2
    assert (spread[x > -700] < 1e-9).all() and not unknown[x > -735].any()


KEPT: dict[str, Callable[[Any, Any], Any]] = {
    "of a sum": lambda p, x: p.log(p.sum(p.exp(x), 1)),
    "of no exponential": lambda p, x: p.log(p.div(x, p.sum(x, 1))),
    "of a shift": lambda p, x: p.log(p.shift(p.exp(x), Fraction(1, 2))),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_logarithms_are_left_as_they_are(name: str) -> None:
    graph = primitive(KEPT[name])
    assert without_far_logarithms(graph) is graph


@pytest.mark.parametrize("way", WAYS)
def test_the_rewritten_logarithm_is_the_same_function(way: str) -> None:
    graph = primitive(WAYS[way])
    x = np.random.default_rng(0).standard_normal((4, 6))
    wanted = evaluate(graph, [x], FloatAlgebra())
    assert worst(evaluate(without_far_logarithms(graph), [x], FloatAlgebra()), wanted) < 1e-12


def primitive(write: Callable[[Any, Any], Any]) -> Graph:
    kernel = new_kernel_graph()
    kernel.mark_output(write(kernel, kernel.new_input((4, 6), "float32", "x")))
    return expand(kernel.graph())
