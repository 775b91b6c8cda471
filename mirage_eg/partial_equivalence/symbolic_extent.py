"""Extents that depend on sizes: a + Σ bᵢ · tᵢ for all whole tᵢ from some least ones on.

A `SymbolicExtent` is an int, a + Σ bᵢ · LARGEⁱ, so that shape rules and boxes take it as they are. Sums keep its form. A
comparison comes out as it does for all large tᵢ; `Trace` notes from which ones on. A quotient that does not divide, a product
of two extents, and an order that large tᵢ do not decide (t₁ < t₂) are refused. Tables of plain ints lose the form but not the
meaning: with |a|, |bᵢ| < LARGE / 2 the int says a and bᵢ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.linear import plus

LARGE = 1 << 31
Slopes = tuple[tuple[int, int], ...]  # pairs (i, bᵢ) in order of i = 1, 2, …, without slopes of 0


@dataclass(slots=True)
class Trace:
    """From `leasts` on, no tᵢ has influence on a comparison; `lenient`: nor on one of which only the truth matters.

    A proof is lenient: boxes without positions and dims of extent 1 do no harm, so that different forms may be equal at some
    sizes, and an order that is not known holds at some.
    With more than one tᵢ (`count`) products of extents are no numbers that tell them apart.
    """

    lenient: bool = False
    count: int = 1
    leasts: dict[int, int] = field(default_factory=dict)

    @property
    def least(self) -> int:
        """The largest of them, which serves all tᵢ."""
        return max(self.leasts.values(), default=0)

    def note(self, constant: int, slopes: Slopes) -> None:
        """From now on constant + Σ slope · tᵢ ≥ 0, where no slope is negative."""
        if constant < 0:
            at, slope = max(slopes, key=lambda it: it[1])
            self.leasts[at] = max(self.leasts.get(at, 0), -(constant // slope))


class SymbolicExtent(int):
    """constant + Σ slope · tᵢ, with a slope at least."""

    constant: int
    slopes: Slopes
    trace: Trace

    def __new__(cls, constant: int, slopes: Slopes, trace: Trace) -> Self:
        extent = super().__new__(cls, constant + sum(slope * LARGE**at for at, slope in slopes))
        extent.constant, extent.slopes, extent.trace = constant, slopes, trace
        return extent

    def __add__(self, other: int) -> int:
        constant, slopes = parts(other)
        return symbolic(self.constant + constant, plus(dict(self.slopes), dict(slopes)), self.trace)

    __radd__ = __add__

    def __neg__(self) -> int:
        return self * -1

    def __sub__(self, other: int) -> int:
        return self + -other

    def __rsub__(self, other: int) -> int:
        return -self + other

    def __mul__(self, other: int) -> int:
        constant, slopes = parts(other)
        if slopes:
            raise UnsupportedError("got a product of two extents that depend on sizes, wanted an affine one")
        return symbolic(self.constant * constant, {at: slope * constant for at, slope in self.slopes}, self.trace)

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
        return not self >= other

    def __le__(self, other: int) -> bool:
        return not self - 1 >= other

    def __gt__(self, other: int) -> bool:
        return bool(self - 1 >= other)

    def __ge__(self, other: int) -> bool:
        difference = self - other
        if not isinstance(difference, SymbolicExtent):
            return difference >= 0
        if difference.sign > 0:
            self.trace.note(difference.constant, difference.slopes)
        else:
            self.trace.note(-difference.constant - 1, tuple((at, -slope) for at, slope in difference.slopes))
        return difference.sign > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int) or (isinstance(other, SymbolicExtent) and other.trace is not self.trace):
            return False  # of a graph that a cache keeps
        difference = self - other
        if not isinstance(difference, SymbolicExtent):
            return not difference
        if self.trace.lenient:
            return False
        apart = difference if difference.sign > 0 else -difference
        self.trace.note(parts(apart)[0] - 1, parts(apart)[1])
        return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash((self.constant, self.slopes, id(self.trace)))

    @property
    def sign(self) -> int:
        """The sign at all large tᵢ. Raises UnsupportedError: there is none."""
        signs = {slope > 0 for _, slope in self.slopes}
        if len(signs) > 1:
            raise UnsupportedError(f"got {self.text} and 0, whose order depends on how large the sizes are to each other")
        return 1 if signs.pop() else -1

    @property
    def text(self) -> str:
        """The form, as 3 + 2 · t1."""
        return " + ".join([str(self.constant), *(f"{slope} · t{at}" for at, slope in self.slopes)])


class SymbolicConstant(Fraction):
    """A constant of a program that is an extent; equal to others of the same trace alone, as extents are."""

    extent: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicConstant) and self.extent == other.extent

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.extent)


def read_constant(number: Fraction, trace: Trace) -> Fraction:
    """The constant that a fraction of a program at tᵢ = LARGEⁱ stands for.

    One that depends on the only size stays a fraction: polynomials in one t are equal where they are at t = LARGE.

    Raises UnsupportedError: a quotient that depends on one of several sizes.
    """
    if trace.count == 1 or max(abs(number.numerator), number.denominator) < LARGE // 2:
        return number
    if number.denominator > 1:
        raise UnsupportedError("got a constant with a quotient of sizes, wanted one where a single size is open")
    constant = SymbolicConstant(number)
    constant.extent = read_symbolic(number.numerator, trace)
    return constant


def parts(extent: int) -> tuple[int, Slopes]:
    """The constant and the slopes of an extent; also of the int that lost them."""
    if isinstance(extent, SymbolicExtent):
        return extent.constant, extent.slopes
    digits, rest = list[int](), int(extent)
    while rest:
        digits.append((rest + LARGE // 2) % LARGE - LARGE // 2)
        rest = (rest - digits[-1]) // LARGE
    return (digits[0] if digits else 0), tuple((at, slope) for at, slope in enumerate(digits) if at and slope)


def symbolic(constant: int, slopes: Mapping[int, int], trace: Trace) -> int:
    """constant + Σ slope · tᵢ: a plain int where all slopes are 0.

    Raises UnsupportedError: numbers too large to be distinguished.
    """
    if not all(-LARGE // 2 < it < LARGE // 2 for it in (constant, *slopes.values())):
        raise UnsupportedError(f"got an extent with {constant} and {[*slopes.values()]}, wanted numbers below {LARGE // 2}")
    left = tuple(sorted((at, slope) for at, slope in slopes.items() if slope))
    return SymbolicExtent(constant, left, trace) if left else constant


def read_symbolic(number: Any, trace: Trace) -> Any:
    """The extent that an int of a program at tᵢ = LARGEⁱ stands for; also those of a tuple. Other values stay."""
    if isinstance(number, tuple):
        return tuple(read_symbolic(it, trace) for it in number)
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) < LARGE // 2:
        return number
    constant, slopes = parts(number)
    return symbolic(constant, dict(slopes), trace)


def surely_at_least(x: int, y: int) -> bool:
    """Whether x ≥ y is known for all large tᵢ; where the trace is lenient only that truth is noted."""
    difference = x - y
    if not isinstance(difference, SymbolicExtent):
        return difference >= 0
    if not difference.trace.lenient:
        return difference >= 0
    if min(slope for _, slope in difference.slopes) < 0:
        return False
    difference.trace.note(difference.constant, difference.slopes)
    return True


def exceeds(x: int, y: int) -> bool:
    """Whether x > y for all large tᵢ; where the trace is lenient they may be equal at small ones."""
    if isinstance(x - y, SymbolicExtent) and (x - y).trace.lenient:  # type: ignore[attr-defined]
        return surely_at_least(x, y)
    return x > y


def is_same(x: int, y: int) -> bool:
    """Whether two extents have one form; others may still be equal at some sizes."""
    return parts(x) == parts(y)


def reciprocal(extent: int) -> Fraction:
    """1 / extent. Raises UnsupportedError: it depends on one of several sizes."""
    if isinstance(extent, SymbolicExtent) and extent.trace.count > 1:
        raise UnsupportedError(f"got a division by {extent.text}, wanted one by a number where several sizes are open")
    return Fraction(1, int(extent))


def _divided(x: int, y: int, trace: Trace) -> tuple[int, int]:
    """The quotient and the remainder of two extents, the divisor positive.

    Raises UnsupportedError: they are not affine in the sizes.
    """
    (constant, slopes), (divisor, growth) = parts(x), parts(y)
    if growth:
        quotient = int(x) // int(y)
        if abs(quotient) < LARGE // 2:
            rest = x - y * quotient
            if rest >= 0 and rest < y:
                return quotient, rest
    elif all(slope % divisor == 0 for _, slope in slopes):
        return symbolic(constant // divisor, {at: slope // divisor for at, slope in slopes}, trace), constant % divisor
    shown = (it.text if isinstance(it, SymbolicExtent) else str(it) for it in (x, y))
    raise UnsupportedError(f"got {' over '.join(shown)}, wanted a quotient that is affine in the sizes")
