"""Exact constants in the text of expressions."""

from fractions import Fraction

from mirage_eg.ir.sizes import Ratio
from mirage_eg.ir.wide_factors import within_range


def number(value: Fraction | int) -> str:
    """An exact constant as a Python literal of type float; an int or an expression of sizes as it is."""
    if isinstance(value, Ratio):
        return value.text
    return repr(value) if isinstance(value, int) else repr(float(value))


def factors(value: Fraction | int) -> list[str]:
    """The literals of a constant factor: several where float32 does not hold it."""
    return [number(value)] if isinstance(value, int | Ratio) else [*map(repr, within_range(value))]
