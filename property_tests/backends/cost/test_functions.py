"""What an elementwise op costs beside an addition."""

from fractions import Fraction

import pytest

from mirage_eg.backends.cost.block_cost import functions_of


@pytest.mark.parametrize(("exponent", "functions"), [(3, 0), (8, 0), (9, 1), (-1, 1), (Fraction(1, 2), 1), (Fraction(5, 2), 1)])
def test_a_power_that_kernels_multiply_is_no_function(exponent: Fraction, functions: int) -> None:
    assert functions_of("pow", {"exponent": Fraction(exponent)}) == functions


def test_a_definition_costs_what_its_dearest_op_does() -> None:
    assert (functions_of("mish", {}), functions_of("erf", {}), functions_of("add", {})) == (1, 2, 0)
