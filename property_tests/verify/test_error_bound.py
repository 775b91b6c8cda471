"""The error bound of a verdict, and the longest reduction of a graph."""

import pytest

from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.testing import as_program
from mirage_eg.verify.error_bound import longest_reduction
from mirage_eg.verify.reference import verify
from property_tests.support.small_programs import K, attention, binary, fused_norm_block, identity, normed_linear, unary


def test_the_bound_of_a_ring_program_is_schwartz_zippel_to_the_trials() -> None:
    # x·y·y has degree 3.
    verdict = verify(binary("mul", "mul"), binary("mul", "mul"), trials=3)
    assert verdict.error_bound == pytest.approx((3 / PRIMES[0]) ** 3)
    # (x/y)/y against itself: N₁D₂ has degree 1 + 2, and each side divides by y twice: 3 + 2 + 2.
    divided = verify(binary("div", "div"), binary("div", "div"), trials=1)
    assert divided.error_bound == pytest.approx(7 / PRIMES[0])


@pytest.mark.parametrize("op", ["exp", "sqrt", "relu", "sigmoid"])
def test_no_bound_is_given_where_no_theorem_gives_one(op: str) -> None:
    verdict = verify(unary(op), unary(op))
    assert verdict.equal
    assert verdict.error_bound is None and op in verdict.bound_reason


def test_a_bound_above_one_is_no_bound() -> None:
    graph = unary(*["square"] * 20)  # x^(2^20), and 2^20 > p
    verdict = verify(graph, graph)
    assert verdict.equal and verdict.error_bound is None and "degree may be 1048576" in verdict.bound_reason


def test_the_longest_reduction_counts_the_loop() -> None:
    assert longest_reduction(normed_linear()) == K
    assert longest_reduction(attention()) == 12
    assert longest_reduction(as_program(fused_norm_block().graph())) == 10
    assert longest_reduction(identity()) == 1
