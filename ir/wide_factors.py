"""A constant factor beyond the normal numbers of float32, as a product of factors within them."""

from fractions import Fraction
from math import ceil, frexp

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
