"""What an elementwise op costs beside an addition."""

from fractions import Fraction

import pytest

from mirage_eg.backends.cost.tile_ops import functions_of


@pytest.mark.parametrize(("exponent", "functions"), [(3, 0), (8, 0), (9, 1), (-1, 1), (Fraction(1, 2), 1), (Fraction(5, 2), 1)])
def test_a_power_that_kernels_multiply_is_no_function(exponent: Fraction, functions: int) -> None:
    assert functions_of("pow", {"exponent": Fraction(exponent)}) == functions


def test_an_op_costs_what_its_record_has_or_the_dearest_op_behind_it() -> None:
    assert (functions_of("mish", {}), functions_of("erf", {}), functions_of("add", {})) == (1, 2, 0)


def test_functions_are_priced_by_the_instructions_of_their_code() -> None:
    """Of an element log1p has 44 in sm_90's code (Triton 3.9), mish 22, elu 18, softplus and expm1 16, gelu 12."""
    assert functions_of("log1p", {}) == 2 > functions_of("mish", {}) == functions_of("tanh", {}) == 1
    assert functions_of("elu", {}) == 0.9 > functions_of("softplus", {}) == functions_of("expm1", {}) == 0.8
    assert functions_of("gelu", {}) == 0.6
