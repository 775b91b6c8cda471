"""Verdicts where terms cancel in float64: a multiple of the prime that constants make large again is a difference."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.exact_numbers import cancels, exact_outputs
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.testing import programs
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.hand_written import inputs_of
from property_tests.support.small_programs import SEEDS, written

SHAPE = (8, 16)


def zero(p: KernelGraph, x: Tensor) -> Tensor:
    return p.scale(x, 0)


def hidden(p: KernelGraph, x: Tensor, digits: int, prime: int = PRIMES[0]) -> Tensor:
    """1.04 x for the first prime, which modulo it, and in float64, is 0."""
    return p.scale(p.sub(p.scale(x, 1 + Fraction(prime, 10**digits)), x), 10 ** (digits - 6))


@given(st.integers(17, 60), SEEDS)
@settings(max_examples=15, deadline=None)
def test_a_multiple_of_the_prime_that_cancels_is_not_equal(digits: int, seed: int) -> None:
    candidate = written(lambda p, x: hidden(p, x, digits), SHAPE)
    assert verify(written(zero, SHAPE), candidate, seed=seed).verdict is Equality.NOT_EQUAL


@pytest.mark.parametrize("prime", PRIMES)
def test_it_is_found_beside_other_terms_and_in_factors_and_fills(prime: int) -> None:
    exp = written(lambda p, x: p.exp(x), SHAPE)
    tiny = Fraction(1, 10**18)
    for wrong in (
        lambda p, x: p.add(p.exp(x), hidden(p, x, 24, prime)),
        lambda p, x: p.exp(p.add(x, hidden(p, x, 24, prime))),
        lambda p, x: p.add(p.exp(x), p.scale(p.scale(p.scale(hidden(p, x, 24, prime), Fraction(1, 10**9)), 10**4), 10**5)),
        lambda p, x: p.add(p.exp(x), p.div(p.scale(hidden(p, x, 24, prime), tiny), p.fill(x, tiny))),
    ):
        assert verify(exp, written(wrong, SHAPE)).verdict is Equality.NOT_EQUAL


def test_what_cancels_and_is_zero_is_equal() -> None:
    assert verify(written(zero, SHAPE), written(lambda p, x: p.scale(p.sub(x, x), 10**14), SHAPE)).equal
    large = written(lambda p, x: p.scale(x, 10**9), SHAPE)
    assert verify(large, written(lambda p, x: p.scale(p.sub(p.scale(x, 3), p.scale(x, 2)), 10**9), SHAPE)).equal


def test_too_many_operations_on_exact_numbers_are_undecided() -> None:
    shape = (512, 1024)
    verdict = verify(written(zero, shape), written(lambda p, x: hidden(p, x, 30), shape))
    assert verdict.verdict is Equality.UNDECIDED
    assert "exact numbers take too long" in str(verdict.undecided_because)


@given(programs(), SEEDS)
@settings(max_examples=15, deadline=None)
def test_exact_numbers_are_those_of_float64_up_to_rounding(program: Graph, seed: int) -> None:
    graph = expand(program)
    inputs = inputs_of(graph, seed % 1000)
    wanted = evaluate(graph, inputs, FloatAlgebra())
    for exact, want in zip(exact_outputs(graph, inputs), wanted, strict=True):
        got = exact.astype(float)
        assert got.shape == want.shape
        with np.errstate(invalid="ignore"):  # of infinities
            assert ((abs(got - want) <= 1e-6 * (1 + abs(want))) | ~(abs(want) < 1e30)).all()


def test_a_sum_of_as_large_terms_does_not_cancel() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE)
    for write, found in (
        (lambda p, x: p.add(p.exp(x), x), False),
        (lambda p, x: p.sum(x, 1), False),
        (lambda p, x: p.sub(x, p.scale(x, 1 + Fraction(1, 10**12))), True),
        (lambda p, x: p.shift(p.shift(p.square(p.scale(x, Fraction(1, 10**9))), 1), -1), True),
    ):
        assert cancels(written(write, SHAPE), [x], np, 1 << 24) is found
