"""The kernels that CuPy runs compute what the NumPy forms do, and there is one launch for each op."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.elementwise_kernels import KERNELS, LONGEST_REDUCTION, REDUCTIONS
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.field_semantics import Component, Randomness
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES, Modulus
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.testing import as_program
from mirage_eg.verify.compare import compare_numbers, compare_residues, sizes_of
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality, Verdict
from property_tests.support.fake_cupy import FakeCupy
from property_tests.support.fake_launches import LAUNCHES, CountingCupy
from property_tests.support.small_programs import attention, fused_norm_block, normed_linear, split_attention

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def cupy(tmp_path_factory: pytest.TempPathFactory) -> FakeCupy:
    return FakeCupy(Path(tmp_path_factory.mktemp("kernels")))


CALLS: dict[str, Callable[[Modulus, Any, Any], Any]] = {
    "multiply": Modulus.multiply,
    "add": Modulus.add,
    "subtract": Modulus.subtract,
    "affine": lambda modulus, x, y: modulus.affine(x, 12345, 678),
    "sum": lambda modulus, x, y: modulus.total(np.broadcast_to(x, (LONGEST_REDUCTION, *x.shape)), (0, 1))[0],
    "divide": lambda modulus, x, y: modulus.divide(x, np.where(y == 0, 1, y)),
    "total": lambda modulus, x, y: modulus.total(x.repeat(50, axis=0), (0,), 3),
    "total_of_squares": lambda modulus, x, y: modulus.total_of_squares(x.repeat(50, axis=0), (0,), modulus.prime - 1),
    "logistic": lambda modulus, x, y: modulus.logistic(x, 77),
    "silu": lambda modulus, x, y: modulus.silu(x, x, 77),
    "look_up": lambda modulus, x, y: modulus.root(x),
    "power": lambda modulus, x, y: modulus.power(x, 3),
    "exponential": lambda modulus, x, y: modulus.exponential(x, 77),
}


@settings(max_examples=6)  # all kernels each
@given(st.sampled_from(PRIMES), SEEDS)
def test_every_kernel_is_equal_to_its_numpy_form(cupy: FakeCupy, prime: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = (generator.integers(0, prime, shape).astype(np.float64) for shape in ((3, 50), (50,)))
    x[0, :3], y[:3] = (0, prime - 1, 1), (prime - 1, prime - 1, 0)
    ours, theirs = Modulus(prime), Modulus(prime, cupy)
    for call in CALLS.values():
        np.testing.assert_array_equal(call(theirs, x, y), call(ours, x, y))
    keyed = [Randomness(seed, 0, xp).keyed(x, 0, "tanh") for xp in (np, cupy)]
    np.testing.assert_array_equal(*keyed)
    relus = [FieldAlgebra.of(seed, 0, xp) for xp in (np, cupy)]
    np.testing.assert_array_equal(*(relu_of(algebra, x % PRIMES[2]).residues for algebra in relus))


def relu_of(algebra: FieldAlgebra, x: np.ndarray) -> Component:
    [component] = algebra.read([algebra.elementwise("relu", [algebra.given([Component(x)])], {})])
    return component


@given(st.sampled_from(PRIMES), SEEDS)
def test_kernels_take_products_that_are_not_yet_reduced(cupy: FakeCupy, prime: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = generator.integers(1, prime, (2, 3, 5)).astype(np.float64)
    step = prime * ((prime - 1) // 2)  # 0 for values, and for exponents
    large_x, large_y = (side + step * generator.integers(0, (2**53 - 4 * prime) // step, side.shape) for side in (x, y))
    modulus = Modulus(prime, cupy)
    for name, call in CALLS.items():
        if name != "sum":  # many terms at once
            np.testing.assert_array_equal(call(modulus, large_x, large_y), call(modulus, x, y))
    np.testing.assert_array_equal(
        *(Randomness(seed, 0, cupy).keyed(side, 1, "f", of=PRIMES.index(prime)) for side in (large_x, x))
    )


def test_the_kernels_compared_are_all_that_there_are() -> None:
    assert CALLS.keys() | {"keyed", "mismatch", "error", "mean"} == KERNELS.keys() | REDUCTIONS.keys()


@given(SEEDS)
def test_comparisons_by_kernels_are_those_of_numpy(cupy: FakeCupy, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = generator.choice([0.0, 1.0, 2.0], (2, 3, 4))
    undefined = generator.random((2, 3, 4)) < 0.2
    on_numpy = compare_residues(np, "x", *map(Component, (x, y), undefined), 1)()
    on_gpu = compare_residues(cupy, "x", *map(Component, np.where(undefined, np.nan, (x, y))), 1)()
    assert on_gpu[:3] == on_numpy[:3]
    for own, other in zip(on_gpu[3:], on_numpy[3:], strict=True):
        assert (own == other).all()
    x, y = (np.where(generator.random((3, 4)) < 0.2, generator.choice([np.inf, -np.inf, np.nan]), side) for side in (x, y))
    for got, wanted in product(*[[side, side.astype(np.float32)] for side in (x, y)]):  # outputs that are inputs are float32
        results = [compare_numbers(xp, ["x"], [got], [wanted], sizes_of(xp, [wanted]), 1e-3)() for xp in (np, cupy)]
        assert str(results[0]) == str(results[1])


@settings(max_examples=25)  # all kernels each
@given(st.sampled_from(PRIMES), SEEDS)
def test_what_is_undefined_stays_so_through_every_kernel(cupy: FakeCupy, prime: int, seed: int) -> None:
    x, y = np.random.default_rng(seed).integers(1, prime, (2, 3, 5)).astype(np.float64)
    x[1, 2] = np.nan
    modulus = Modulus(prime, cupy)
    assert np.isnan(modulus.inverse(np.array([0.0, 1.0]))).tolist() == [True, False]
    assert np.isnan(modulus.inverse_root(np.array([0.0, 1.0]))).tolist() == [True, False]
    np.testing.assert_array_equal(np.isnan(modulus.divide(y, x)), np.isnan(x))
    np.testing.assert_array_equal(np.isnan(modulus.divide(y, np.where(x > 9, x, 0))), ~(x > 9))
    for call in CALLS.values():
        result = call(modulus, x, y)
        wanted = np.isnan(x) if result.shape == x.shape else np.isnan(x).any(axis=0, keepdims=True)
        np.testing.assert_array_equal(np.isnan(result), wanted)
    np.testing.assert_array_equal(np.isnan(Randomness(seed, 0, cupy).keyed(x, 0, "tanh")), np.isnan(x))
    np.testing.assert_array_equal(np.isnan(relu_of(FieldAlgebra.of(seed, 0, cupy), x).residues), np.isnan(x))
    np.testing.assert_array_equal(np.isnan(modulus.matmul(x, y.T)), np.isnan(x).any(axis=1, keepdims=True).repeat(3, axis=1))


def test_operands_that_stand_in_float32_need_no_copy(cupy: FakeCupy) -> None:
    x = np.arange(40.0).reshape(8, 5)
    product = Modulus(PRIMES[0], cupy).multiply(x.astype(np.float32), x)
    assert product.dtype == np.float64
    np.testing.assert_array_equal(product, Modulus(PRIMES[0]).multiply(x, x))


def assert_same(verdict: Verdict, other: Verdict) -> None:
    """The same verdicts; sums of floats in another order, as processors have it, differ by a few units in the last place."""
    assert replace(verdict, float_error=other.float_error) == other
    assert verdict.float_error == pytest.approx(other.float_error, rel=1e-9, abs=1e-15)


def test_a_check_launches_no_more_for_more_draws_and_waits_once(tmp_path: Path) -> None:
    counting = CountingCupy(tmp_path)
    counts = []
    for trials in (1, 2, 8):
        reference = Reference(attention(), trials, xp=counting)
        reference.check(split_attention(True))
        LAUNCHES.clear()
        assert_same(reference.check(split_attention(True)), Reference(attention(), trials).check(split_attention(True)))
        counts.append((LAUNCHES.total(), LAUNCHES["wait"]))
    assert counts[1] == counts[2]
    # A single draw stands in float32 and is widened where it is read; the field and float64 are waited for once.
    assert counts[0][0] >= counts[1][0] > 10 and {waits for _, waits in counts} == {2}


def test_products_of_tiles_need_no_lists_of_pointers_on_the_gpu(tmp_path: Path) -> None:
    counting = CountingCupy(tmp_path)
    reference = Reference(attention(), xp=counting)
    LAUNCHES.clear()
    reference.check(split_attention(True))
    assert LAUNCHES["matmul"] and not LAUNCHES["cupy_mat_ptrs"]
    x, y = (counting.asarray(np.ones(shape)) for shape in ((3, 1, 2, 2), (1, 4, 2, 2)))
    counting.matmul(x, y)  # as it stands
    assert LAUNCHES["cupy_mat_ptrs"] == 6


def test_an_op_is_one_launch(cupy: FakeCupy) -> None:
    for name, call in CALLS.items():
        cupy.launches.clear()
        call(Modulus(PRIMES[0], cupy), np.ones((4, 4)), np.ones((4, 4)))
        assert cupy.launches == {f"mirage_{name}": 1}


def partly_undefined(right: bool) -> Graph:
    """x / y, and x / 0 in two rows more."""
    program = KernelGraph()
    x, y = program.new_input((6, 4)), program.new_input((4, 4))
    nothing = program.split(program.sub(y, y), 2, 0)[0]
    divisor = program.concat([y, nothing], 0)
    quotient = program.div(x, divisor)
    program.mark_output(program.exp(quotient if right else program.add(quotient, quotient)))
    return program.graph()


def test_what_is_undefined_counts_on_the_gpu_as_on_the_cpu(cupy: FakeCupy) -> None:
    for right, verdict in ((True, Equality.EQUAL), (False, Equality.NOT_EQUAL)):
        results = [Reference(partly_undefined(True), xp=xp).check(partly_undefined(right)) for xp in (np, cupy)]
        assert results[0] == results[1] and results[0].verdict is verdict
        assert results[0].coverage == pytest.approx(2 / 3)


def undefined_keys(op: str) -> Graph:
    """A library op of x / y, and of x / 0 in two rows more; `gather` has the order of the quotient as its indices."""
    program = KernelGraph()
    x, y = program.new_input((6, 4)), program.new_input((4, 4))
    quotient = program.div(x, program.concat([y, program.split(program.sub(y, y), 2, 0)[0]], 0))
    order, image = program.argsort(quotient, dim=1), program.reshape(quotient, (1, 1, 6, 4))
    match op:
        case "argsort":
            program.mark_output(program.cast(order, "float32"))
        case "cumsum":
            program.mark_output(program.cumsum(quotient, dim=1))
        case "gather":
            program.mark_output(program.take_along_dim(x, order, dim=1))
        case "conv2d":
            program.mark_output(program.conv2d(image, program.new_input((2, 1, 2, 2)), pads=(0, 1, 1, 0)))
        case "max_pool2d":
            program.mark_output(program.max_pool2d(image, 2, 1, (0, 1, 1, 0)))
        case "avg_pool2d":
            program.mark_output(program.avg_pool2d(image, 2, 1, (0, 1, 1, 0), count_include_pad=False))
        case "pad":
            program.mark_output(program.flip(program.pad(quotient, ((1, 0), (0, 2)), 3), 0))
    return program.graph()


@pytest.mark.parametrize("op", ["argsort", "cumsum", "gather", "conv2d", "max_pool2d", "avg_pool2d", "pad"])
def test_library_ops_of_undefined_values_are_those_of_numpy(cupy: FakeCupy, op: str) -> None:
    masks = []
    for xp in (np, cupy):
        algebra, graph = FieldAlgebra.of(3, 0, xp), undefined_keys(op)
        inputs = [algebra.input(position, kind.shape) for position, kind in enumerate(graph.input_types)]
        [component] = algebra.read(evaluate(expand(graph), inputs, algebra))
        masks.append(np.isnan(component.residues) if component.undefined is None else component.undefined)
    np.testing.assert_array_equal(*masks)
    assert masks[0].any()


@pytest.mark.parametrize("right", [True, False])
def test_verdicts_with_the_kernels_are_those_of_numpy(cupy: FakeCupy, right: bool) -> None:
    verdict = Reference(attention(), xp=cupy).check(split_attention(right))
    assert_same(verdict, Reference(attention()).check(split_attention(right)))
    assert verdict.verdict is (Equality.EQUAL if right else Equality.NOT_EQUAL)
    fused = as_program(fused_norm_block().graph())
    assert_same(Reference(normed_linear(), xp=cupy).check(fused), Reference(normed_linear()).check(fused))
