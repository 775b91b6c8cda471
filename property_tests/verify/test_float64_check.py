"""The comparison in float64: it finds differences that the field hides and ignores rounding noise."""

from fractions import Fraction

import pytest

from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.small_programs import Pair, negative_root, written

S = (8, 8)
P, Q, R = PRIMES


def test_not_a_number_everywhere_is_no_evidence_of_equality() -> None:
    verdict = verify(negative_root(), negative_root())
    assert verdict.verdict is Equality.UNDECIDED and verdict.float_error is None


def test_a_constant_off_by_a_millionth_is_found() -> None:
    def normed(eps: float) -> Graph:
        program = KernelGraph()
        program.mark_output(program.rms_norm(program.new_input((4, 8)), 8, eps=eps))
        return program.graph()

    assert verify(normed(1e-5), normed(1e-5)).equal
    assert verify(normed(1e-5), normed(1.1e-5)).verdict is Equality.NOT_EQUAL


BEYOND_FLOAT64: dict[str, Pair] = {
    "exp(exp) of far inputs, times 0": (
        lambda p, x: p.relu(x),
        lambda p, x: p.add(p.relu(x), p.scale(p.exp(p.exp(p.exp(x))), 0)),
    ),
    "a divisor whose exponential overflows": (
        lambda p, x: p.div(p.relu(x), p.log(p.exp(p.square(p.square(x))))),
        lambda p, x: p.div(p.scale(p.relu(x), 3), p.scale(p.log(p.exp(p.square(p.square(x)))), 3)),
    ),
    "exp(-1/0) at the largest of each row": (
        lambda p, x: p.exp(p.div(p.square(x), p.sub(x, p.max(x, 1)))),
        lambda p, x: p.exp(p.div(p.scale(p.square(x), 3), p.sub(p.scale(x, 3), p.scale(p.max(x, 1), 3)))),
    ),
}


@pytest.mark.parametrize("name", BEYOND_FLOAT64)
def test_what_float64_does_not_hold_far_out_is_no_difference(name: str) -> None:
    program, candidate = (written(write, S) for write in BEYOND_FLOAT64[name])
    assert all(verify(program, candidate, seed=seed).verdict is not Equality.NOT_EQUAL for seed in range(5))


EQUAL_NEAR_ZERO: dict[str, Pair] = {
    "clamp(x, -7, 7) for x": (lambda p, x: p.scale(x, 1), lambda p, x: p.clamp(x, -7, 7)),
    "clamp(x, -1000, 1000) for x": (lambda p, x: p.scale(x, 1), lambda p, x: p.clamp(x, -1000, 1000)),
    "√((x + 8)²) for x + 8": (lambda p, x: p.shift(x, 8), lambda p, x: p.sqrt(p.square(p.shift(x, 8)))),
    "relu(x + 7) for x + 7": (lambda p, x: p.shift(x, 7), lambda p, x: p.relu(p.shift(x, 7))),
    "|x + 9| for x + 9": (lambda p, x: p.shift(x, 9), lambda p, x: p.op("abs", p.shift(x, 9))),
    "0 for relu(x - 1000)": (lambda p, x: p.relu(p.shift(x, -1000)), lambda p, x: p.scale(p.relu(p.shift(x, -1000)), 0)),
}


@pytest.mark.parametrize("name", EQUAL_NEAR_ZERO)
def test_what_is_equal_near_zero_alone_is_not_equal(name: str) -> None:
    program, candidate = (written(write, S) for write in EQUAL_NEAR_ZERO[name])
    assert {verify(program, candidate, seed=seed).verdict for seed in range(5)} == {Equality.NOT_EQUAL}


EQUAL_IN_THE_FIELD: dict[str, Pair] = {
    "p too much in a factor": (lambda p, x: p.scale(x, 1), lambda p, x: p.scale(x, 1 + P)),
    "pqr too much in a term": (lambda p, x: p.scale(x, 1), lambda p, x: p.shift(x, P * Q * R)),
    "x^p for x": (lambda p, x: p.scale(x, 1), lambda p, x: p.pow(x, P)),
    "x^(p-1) for 1": (lambda p, x: p.shift(p.scale(x, 0), 1), lambda p, x: p.pow(x, P - 1)),
    "x / (x + p) for 1": (lambda p, x: p.div(x, x), lambda p, x: p.div(x, p.shift(x, P))),
}


@pytest.mark.parametrize("name", EQUAL_IN_THE_FIELD)
def test_what_only_a_prime_makes_equal_is_told_by_float64(name: str) -> None:
    program, candidate = (written(write, S) for write in EQUAL_IN_THE_FIELD[name])
    assert verify(program, candidate).verdict is Equality.NOT_EQUAL


CANCELLED: dict[str, Pair] = {
    "mean of a layer norm": (
        lambda p, x: p.mean(p.layer_norm(x, 8), 1),
        lambda p, x: p.scale(p.sum(p.layer_norm(x, 8), 1), Fraction(1, 8)),
    ),
    "mean of a layer norm is 0": (lambda p, x: p.mean(p.layer_norm(x, 8), 1), lambda p, x: p.scale(p.mean(x, 1), 0)),
    "all of it": (lambda p, x: p.mean(p.mean(p.layer_norm(x, 8), 1), 0), lambda p, x: p.mean(p.mean(p.layer_norm(x, 8), 0), 1)),
    "sum of what the mean leaves": (lambda p, x: p.sum(p.sub(x, p.mean(x, 1)), 1), lambda p, x: p.scale(p.sum(x, 1), 0)),
    "a softmax adds up to 1": (
        lambda p, x: p.shift(p.sum(p.softmax(x, 1), 1), -1),
        lambda p, x: p.sum(p.sub(p.softmax(x, 1), p.softmax(x, 1)), 1),
    ),
    "far out and back": (lambda p, x: p.scale(x, 1), lambda p, x: p.shift(p.shift(x, 10**9), -(10**9))),
    "variance as a difference": (
        lambda p, x: p.mean(p.square(p.sub(p.shift(x, 1000), p.mean(p.shift(x, 1000), 1))), 1),
        lambda p, x: p.sub(p.mean(p.square(p.shift(x, 1000)), 1), p.square(p.mean(p.shift(x, 1000), 1))),
    ),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_rounding_noise_is_no_difference(name: str) -> None:
    program, candidate = (written(write, S) for write in CANCELLED[name])
    for seed in range(5):
        assert verify(program, candidate, seed=seed).equal


def test_a_difference_above_the_noise_is_one() -> None:
    program = written(lambda p, x: p.mean(p.layer_norm(x, 8), 1), S)
    wrong = written(lambda p, x: p.shift(p.mean(p.layer_norm(x, 8), 1), Fraction(1, 10**9)), S)
    assert verify(program, wrong).verdict is Equality.NOT_EQUAL
