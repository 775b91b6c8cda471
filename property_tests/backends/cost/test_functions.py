"""What an elementwise op costs beside an addition."""

from fractions import Fraction

import pytest

from mirage_eg.backends.cost.block_cost import functions_of


@pytest.mark.parametrize(("exponent", "functions"), [(3, 0), (8, 0), (9, 1), (-1, 1), (Fraction(1, 2), 1), (Fraction(5, 2), 1)])
def test_a_power_that_kernels_multiply_is_no_function(exponent: Fraction, functions: int) -> None:
    assert functions_of("pow", {"exponent": Fraction(exponent)}) == functions


def test_an_op_costs_what_its_record_has_or_the_dearest_op_behind_it() -> None:
    assert (functions_of("mish", {}), functions_of("erf", {}), functions_of("add", {})) == (1, 2, 0)


def test_mish_is_cheaper_than_the_ops_of_its_definition() -> None:
    """Of an element softplus has 45 instructions in sm_90's code (Triton 3.9), expm1 45, log1p 41, mish 21 and tanh 16."""
    assert functions_of("softplus", {}) == functions_of("expm1", {}) == 2.2 > functions_of("log1p", {}) == 2
    assert functions_of("mish", {}) == functions_of("tanh", {}) == 1
