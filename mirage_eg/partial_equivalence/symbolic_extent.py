"""Extents that depend on a size: a + b · t for every whole t from some least one on.

A `SymbolicExtent` is an int, a + b · LARGE, so that shape rules and boxes take it as they are. Sums keep its form. A comparison
comes out as it does for all large t; `Trace` notes from which t on. What is not affine in t (a quotient that does not divide,
a product of two) is refused. Tables of plain ints lose the form but not the meaning: with |a| < LARGE / 2 the int says a and b.
"""

from dataclasses import dataclass
from typing import Any, Self

from mirage_eg.ir.errors import UnsupportedError

LARGE = 1 << 31


@dataclass(slots=True)
class Trace:
    """From `least` on, t has no influence on any comparison."""

    least: int = 0


class SymbolicExtent(int):
    """constant + slope · t, with a slope other than 0."""

    constant: int
    slope: int
    trace: Trace

    def __new__(cls, constant: int, slope: int, trace: Trace) -> Self:
        extent = super().__new__(cls, constant + slope * LARGE)
        extent.constant, extent.slope, extent.trace = constant, slope, trace
        return extent

    def __add__(self, other: int) -> int:
        constant, slope = parts(other)
        return symbolic(self.constant + constant, self.slope + slope, self.trace)

    __radd__ = __add__

    def __neg__(self) -> int:
        return symbolic(-self.constant, -self.slope, self.trace)

    def __sub__(self, other: int) -> int:
        return self + -other

    def __rsub__(self, other: int) -> int:
        return -self + other

    def __mul__(self, other: int) -> int:
        constant, slope = parts(other)
        if slope:
            raise UnsupportedError("got a product of two extents that depend on the size, wanted an affine one")
        return symbolic(self.constant * constant, self.slope * constant, self.trace)

    __rmul__ = __mul__

    def __divmod__(self, other: int) -> tuple[int, int]:
        return _divided(self, other, self.trace)

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return _divided(other, self, self.trace)

    def __floordiv__(self, other: int) -> int:
        return divmod(self, other)[0]

    def __rfloordiv__(self, other: int) -> int:
        return divmod(other, self)[0]

    def __mod__(self, other: int) -> int:
        return divmod(self, other)[1]

    def __rmod__(self, other: int) -> int:
        return divmod(other, self)[1]

    def __lt__(self, other: int) -> bool:
        return self._sign(other) < 0

    def __le__(self, other: int) -> bool:
        return self._sign(other) <= 0

    def __gt__(self, other: int) -> bool:
        return self._sign(other) > 0

    def __ge__(self, other: int) -> bool:
        return self._sign(other) >= 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicExtent) and other.trace is not self.trace:  # of a graph that a cache keeps
            return False
        return isinstance(other, int) and not self._sign(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash((self.constant, self.slope, id(self.trace)))

    def _sign(self, other: int) -> int:
        """The sign of self − other for all large t."""
        constant, slope = parts(other)
        constant, slope = self.constant - constant, self.slope - slope
        if not slope:
            return (constant > 0) - (constant < 0)
        self.trace.least = max(self.trace.least, -constant // slope + 1)
        return 1 if slope > 0 else -1


def parts(extent: int) -> tuple[int, int]:
    """The constant and the slope of an extent; also of the int that lost them."""
    if isinstance(extent, SymbolicExtent):
        return extent.constant, extent.slope
    slope = (int(extent) + LARGE // 2) // LARGE
    return int(extent) - slope * LARGE, slope


def symbolic(constant: int, slope: int, trace: Trace) -> int:
    """constant + slope · t: a plain int where the slope is 0.

    Raises:
        UnsupportedError: numbers too large to be distinguished.
    """
    if not -LARGE // 2 < constant < LARGE // 2:
        raise UnsupportedError(f"got the extent {constant} + {slope} · t, wanted a constant below {LARGE // 2}")
    return SymbolicExtent(constant, slope, trace) if slope else constant


def read_symbolic(number: Any, trace: Trace) -> Any:
    """The extent that an int of a program at t = LARGE stands for; also those of a tuple. Other values stay."""
    if isinstance(number, tuple):
        return tuple(read_symbolic(it, trace) for it in number)
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) < LARGE // 2:
        return number
    return symbolic(*parts(number), trace)


def _divided(x: int, y: int, trace: Trace) -> tuple[int, int]:
    """The quotient and the remainder of two extents, the divisor positive.

    Raises:
        UnsupportedError: they are not affine in t.
    """
    (constant, slope), (divisor, growth) = parts(x), parts(y)
    if growth:
        quotient = int(x) // int(y)
        rest = x - y * quotient
        if rest >= 0 and rest < y:
            return quotient, rest
    elif slope % divisor == 0:
        return symbolic(constant // divisor, slope // divisor, trace), constant % divisor
    raise UnsupportedError(f"got {constant} + {slope} · t over {divisor} + {growth} · t, wanted a quotient that is affine in t")
