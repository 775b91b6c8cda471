"""Exact constants in the text of expressions, and factors beyond the normal numbers of float32."""

from fractions import Fraction
from math import ceil, frexp

from mirage_eg.ir.sizes import Ratio

_MOST = 126  # the exponents of normal numbers of float32 reach from -126 to 127


def within_range(factor: Fraction | int) -> tuple[float, ...]:
    """Factors whose product is the given one: itself if float32 holds it, else powers of two and a rest of about equal sizes.

    The products of x with the first ones leave the range only if the whole product does.
    """
    _, exponent = frexp(float(factor))
    count = max(1, ceil(abs(exponent) / _MOST))
    if count == 1:
        return (float(factor),)
    power = Fraction(2) ** (exponent // count)
    return (*[float(power)] * (count - 1), float(factor / power ** (count - 1)))


def number(value: Fraction | int) -> str:
    """An exact constant as a Python literal of type float; an int or an expression of sizes as it is."""
    if isinstance(value, Ratio):
        return value.text
    return repr(value) if isinstance(value, int) else repr(float(value))


def factors(value: Fraction | int) -> list[str]:
    """The literals of a constant factor: several where float32 does not hold it."""
    return [number(value)] if isinstance(value, int | Ratio) else [*map(repr, within_range(value))]
