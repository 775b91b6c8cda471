"""Verdicts at zeros, which are ordinary data: a µGraph that is undefined there and its program is not differs from it."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from mirage_eg.verify.zeros import has_case_at_zero
from property_tests.support.parameters import few
from property_tests.support.small_programs import SEEDS, Pair, written

Shapes = tuple[tuple[int, ...], ...]
ROWS, ROW, PRODUCT, DECODE = ((16, 32),), ((1, 32),), ((16, 32), (32, 8)), ((1, 32), (32, 8))


def through(value: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """relu(s) / s · s for a value s."""

    def write(p: KernelGraph, *inputs: Tensor) -> Tensor:
        s = value(p, *inputs)
        return p.mul(p.div(p.relu(s), s), s)

    return write


def same(p: KernelGraph, x: Tensor) -> Tensor:
    return p.scale(x, 1)


def product(p: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
    return p.matmul(x, w)


def total(p: KernelGraph, x: Tensor) -> Tensor:
    return p.sum(x, 1)


def above(value: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda p, *inputs: p.relu(value(p, *inputs))


def one(p: KernelGraph, x: Tensor) -> Tensor:
    return p.shift(p.scale(x, 0), 1)


UNDEFINED: dict[str, tuple[Pair, Shapes]] = {
    "relu(x) / x · x": ((above(same), through(same)), ROWS),
    "of a product": ((above(product), through(product)), PRODUCT),
    "of a product with one row": ((above(product), through(product)), DECODE),
    "of a sum": ((above(total), through(total)), ROWS),
    "of the sum of all": ((above(total), through(total)), ROW),
    "x² / x": ((same, lambda p, x: p.div(p.square(x), x)), ROWS),
    "x / x": ((one, lambda p, x: p.div(x, x)), ROWS),
    "x / |x| · |x|": ((same, lambda p, x: p.mul(p.div(x, p.abs(x)), p.abs(x))), ROWS),
    "x · rsqrt(x²) · |x|": ((same, lambda p, x: p.mul(p.mul(x, p.rsqrt(p.square(x))), p.abs(x))), ROWS),
    "less for less_equal": ((lambda p, x: p.less_equal(x, p.scale(x, 0)), lambda p, x: p.less(x, p.scale(x, 0))), ROWS),
}


@pytest.mark.parametrize("name", UNDEFINED)
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_a_graph_undefined_at_zeros_of_a_defined_program_is_not_equal(name: str, seed: int) -> None:
    (program, candidate), shapes = UNDEFINED[name]
    verdict = verify(written(program, *shapes), written(candidate, *shapes), seed=seed)
    assert verdict.verdict is Equality.NOT_EQUAL
    assert verdict.difference is not None and "zeros among the inputs" in verdict.difference.domain


def around(candidate: Callable[[KernelGraph, Tensor], Tensor]) -> Callable[..., Tensor]:
    """candidate(x − 3)."""
    return lambda p, x: candidate(p, p.shift(x, -3))


ROOTS: dict[str, Pair] = {
    "(x − 3)² / (x − 3)": (around(same), around(lambda p, s: p.div(p.square(s), s))),
    "(x − 3) / (x − 3)": (one, around(lambda p, s: p.div(s, s))),
    "|x − 3|": (around(lambda p, s: p.abs(s)), around(lambda p, s: p.div(p.square(s), p.abs(s)))),
    "(2x − 6) · x / (2x − 6)": (same, lambda p, x: p.div(p.mul(p.shift(p.scale(x, 2), -6), x), p.shift(p.scale(x, 2), -6))),
    "(x − 3)³ · (x − 3)⁻¹": (around(lambda p, s: p.square(s)), around(lambda p, s: p.mul(s**3, s**-1))),
}


@pytest.mark.parametrize("name", ROOTS)
def test_a_graph_undefined_where_a_denominator_has_its_root_is_not_equal(name: str) -> None:
    program, candidate = ROOTS[name]
    verdict = verify(written(program, *ROWS), written(candidate, *ROWS))
    assert verdict.verdict is Equality.NOT_EQUAL
    assert verdict.difference is not None and "some 3.0 among the inputs" in verdict.difference.domain
    assert verify(written(candidate, *ROWS), written(candidate, *ROWS)).equal


TIES: dict[str, tuple[Pair, Shapes]] = {
    "less for less_equal": ((lambda p, x, y: p.less_equal(x, y), lambda p, x, y: p.less(x, y)), ((4, 8), (4, 8))),
    "never for equal": ((lambda p, x, y: p.mul(p.equal(x, y), x), lambda p, x, y: p.scale(x, 0)), ((4, 8), (4, 8))),
    "an order backwards": (
        (lambda p, x: p.argsort(x, 1), lambda p, x: p.flip(p.argsort(x, 1, descending=True), (1,))),
        ((4, 32),),
    ),
    "a choice by order": (
        (
            lambda p, x, y: p.gather(y, p.argsort(x, 0)),
            lambda p, x, y: p.gather(p.flip(y, (0,)), p.argsort(p.flip(x, (0,)), 0)),
        ),
        ((40,), (40, 3)),
    ),
}


@pytest.mark.parametrize("name", TIES)
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_equal_elements_in_another_order_are_not_equal(name: str, seed: int) -> None:
    (program, candidate), shapes = TIES[name]
    assert verify(written(program, *shapes), written(candidate, *shapes), seed=seed).verdict is Equality.NOT_EQUAL
    assert verify(written(program, *shapes), written(program, *shapes), seed=seed).equal


RIGHT: dict[str, tuple[Pair, Shapes]] = {
    "division by a root": (
        (lambda p, x: p.div(x, p.sqrt(p.mean(p.square(x), 1))), lambda p, x: p.mul(x, p.rsqrt(p.mean(p.mul(x, x), 1)))),
        ROWS,
    ),
    "and an epsilon": (
        (
            lambda p, x: p.div(x, p.sqrt(p.shift(p.mean(p.square(x), 1), 1e-6))),
            lambda p, x: p.mul(x, p.rsqrt(p.shift(p.scale(p.sum(p.square(x), 1), 1 / 32), 1e-6))),
        ),
        ROWS,
    ),
    "a product, then a norm": (
        (
            lambda p, x, w: p.matmul(p.div(x, p.sqrt(p.mean(p.square(x), 1))), w),
            lambda p, x, w: p.div(p.matmul(x, w), p.sqrt(p.mean(p.square(x), 1))),
        ),
        PRODUCT,
    ),
    "a softmax": (
        (
            lambda p, x: p.softmax(x, 1),
            lambda p, x: p.div(p.exp(p.sub(x, p.max(x, 1))), p.sum(p.exp(p.sub(x, p.max(x, 1))), 1)),
        ),
        ROWS,
    ),
    "two quotients": ((lambda p, x, y: p.div(x, p.mul(y, y)), lambda p, x, y: p.div(p.div(x, y), y)), ((16, 32), (16, 32))),
    "a sum of quotients": (
        (lambda p, x, y: p.sum(p.div(x, y), 1), lambda p, x, y: p.sum(p.mul(x, p.pow(y, -1)), 1)),
        ((16, 32), (16, 32)),
    ),
    "more defined than its program": ((lambda p, x: p.div(p.square(x), x), same), ROWS),
}


@pytest.mark.parametrize("name", RIGHT)
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_right_graphs_are_equal_at_zeros_too(name: str, seed: int) -> None:
    (program, candidate), shapes = RIGHT[name]
    pair = written(program, *shapes), written(candidate, *shapes)
    assert verify(*pair, seed=seed).equal
    assert float_check(*pair, seed).ok


def test_the_float_check_finds_a_graph_undefined_at_zeros() -> None:
    pair = (written(write, *ROWS, dtype="float16") for write in UNDEFINED["x² / x"][0])
    check = float_check(*pair)
    assert not check.ok and check.problem == "NOT FINITE at zeros"


@pytest.mark.parametrize(("name", "case"), few([("rmsnorm", True), ("gated_mlp", False), ("lora", False), ("gqa", False)], 2))
def test_zeros_are_compared_where_a_divisor_may_be_zero(name: str, case: bool) -> None:
    assert has_case_at_zero(WORKLOADS[name](1)) is case
