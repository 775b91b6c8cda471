"""log1p, expm1 and logarithms to other bases keep their digits in kernels, near zero and far from it, as in torch."""

import math
from typing import Any

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.dtypes import DType
from property_tests.support.hand_written import block_program, in_dtype

NEAR_ZERO = [0.0, -0.0, 1e-30, 1e-8, -1e-8, 3e-5, -0.004, 0.02, 0.0500001, -0.0499999, 0.3, -0.7, 0.9999, 1.0, -0.99, 5.0]
POWERS = [2.0**31, 8.0, 2.0**-40, 1.0, 0.5, 2.0**100, 1024.0, 3.0, 7.7, 1e-30, 1e30, 10.0, 1000.0, 0.1, 1e-3, 123456.0]
UNUSUAL = [np.inf, -np.inf, np.nan, -1.0, -2.0, 0.0, 80.0, -80.0]


def of(op: str, x: list[float], dtype: str) -> Any:
    """A block graph with one op, and its operand."""
    graph = in_dtype(block_program((2, len(x) // 2), lambda b, value: b.op(op, value)), dtype)
    return graph, np.array(x, dtype).reshape(2, -1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "x"), [("log1p", NEAR_ZERO), ("expm1", NEAR_ZERO), ("log2", POWERS), ("log10", POWERS)])
def test_kernel_and_evaluator_have_all_digits_of_the_function(
    run_program: RunProgram, op: str, x: list[float], dtype: str
) -> None:
    graph, array = of(op, x, dtype)
    wanted = getattr(np, op)(array.astype(np.longdouble))
    evaluated = evaluate(graph, [array], FloatAlgebra(working=DType(dtype)))
    for [got] in (run_program(emit(graph), [array]), evaluated):
        np.testing.assert_allclose(got.astype(np.longdouble), wanted, rtol=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["expm1", "softplus"])
def test_polynomials_join_the_function_and_keep_its_digits(run_program: RunProgram, op: str, dtype: str) -> None:
    """At ±1/2, where the polynomial of expm1 ends, below it, and where softplus vanishes or is its operand."""
    ends = np.nextafter(np.array([0.5, -0.5, 0.5, -0.5], dtype), np.array([1, -1, 0, 0], dtype)).astype(float)
    x = [*np.linspace(-20.0, 20.0, 2001), *np.linspace(-0.7, 0.7, 1993), 0.5, -0.5, *ends]
    graph, array = of(op, x, dtype)
    exact = array.astype(np.longdouble)
    wanted = np.expm1(exact) if op == "expm1" else np.logaddexp(exact, np.longdouble(0))
    [got] = run_program(emit(graph), [array])
    np.testing.assert_allclose(got.astype(np.longdouble), wanted, rtol=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_is_within_units_in_the_last_place_of_its_operand(run_program: RunProgram, dtype: str) -> None:
    """It has digits below 0, too, where the sum of 1 and an error function has few."""
    graph, array = of("gelu", [*np.linspace(-14.0, 14.0, 2001), 0.0, -100.0, 1e30], dtype)
    wanted = array * np.vectorize(math.erfc)(-array.astype(np.float64) / math.sqrt(2)) / 2
    [got] = run_program(emit(graph), [array])
    assert (np.abs(got - wanted) <= 3 * np.spacing(np.abs(array))).all()
    assert np.abs(got[array < -7]).max() < 1e-9


def test_tanh_and_the_gelu_of_it_have_the_digits_of_float32(run_program: RunProgram) -> None:
    x = [*np.linspace(-10.0, 10.0, 3001), *np.linspace(-0.6, 0.6, 998), 1e-30]
    graph, array = of("tanh", x, "float32")
    wanted = np.tanh(array.astype(np.float64))
    [got] = run_program(emit(graph), [array])
    assert (np.abs(got - wanted) <= 5 * np.spacing(np.abs(wanted).astype(np.float32))).all()
    graph, array = of("gelu_tanh", x, "float32")
    exact = array.astype(np.float64)
    wanted = exact * (1 + np.tanh(math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3))) / 2
    [got] = run_program(emit(graph), [array])
    assert (np.abs(got - wanted) <= 4 * np.spacing(np.abs(array))).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roots_are_rounded_to_nearest(run_program: RunProgram, dtype: str) -> None:
    """A GPU's fast root is off by a digit, often to one side: a mean of differences of distances shows it."""
    graph, array = of("sqrt", [*np.linspace(0.1, 4.0, 64)], dtype)
    source = emit(graph)
    [got] = run_program(source, [array])
    np.testing.assert_array_equal(got, np.sqrt(array))
    assert "return tl.sqrt_rn(x)" in source and source.count("tl.sqrt(") == 1  # of float64


@pytest.mark.parametrize("op", ["log1p", "expm1", "log2", "log10", "softplus"])
def test_infinite_and_undefined_operands_give_what_numpy_gives(run_program: RunProgram, op: str) -> None:
    graph, array = of(op, UNUSUAL, "float32")
    with np.errstate(all="ignore"):
        wanted = np.logaddexp(array, np.float32(0)) if op == "softplus" else getattr(np, op)(array)
    [got] = run_program(emit(graph), [array])
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_the_logarithm_to_the_base_2_of_a_power_is_whole(run_program: RunProgram) -> None:
    x = [2.0**n for n in range(-120, 120, 3)]
    graph, array = of("log2", x, "float32")
    [got] = run_program(emit(graph), [array])
    np.testing.assert_array_equal(got.reshape(-1), np.arange(-120, 120, 3))
