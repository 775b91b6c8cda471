"""Affine index expressions over boxes: comparisons and quotients that hold on a box, or the split that makes them hold.

A variable v counts 0, 1, … below its extent. A variable is *free* (a place in the output) or *summed*. Where a
comparison is true on one part of the box and false on another, `Undecided` says at which variable the box divides: at a cut
(v below t, and above), or into two digits (v = size · q + r).

    lo, hi   least and largest value of an expression on the box
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.linear import plus
from mirage_eg.partial_equivalence.symbolic_extent import exceeds, is_same, surely_at_least


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + Σ coefficient · variable; `terms` are sorted by variable, without coefficients of 0."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()

    @property
    def order(self) -> tuple[int, ...]:
        """A place in some order of all expressions."""
        return (int(self.constant), *(int(number) for pair in self.terms for number in pair))

    def plus(self, other: "Affine", times: int = 1) -> "Affine":
        """self + times · other."""
        if not other.terms:
            return Affine(self.constant + times * other.constant, self.terms)
        return affine(self.constant + times * other.constant, plus(dict(self.terms), dict(other.terms), times))

    def shifted(self, number: int) -> "Affine":
        """self + number."""
        return Affine(self.constant + number, self.terms)

    def scaled(self, number: int) -> "Affine":
        """number · self."""
        return affine(number * self.constant, {variable: number * coefficient for variable, coefficient in self.terms})

    def substituted(self, variable: int, value: "Affine") -> "Affine":
        """self with `value` in place of a variable."""
        coefficient = dict(self.terms).get(variable, 0)
        rest = Affine(self.constant, tuple(pair for pair in self.terms if pair[0] != variable))
        return rest.plus(value, coefficient) if coefficient else self


def affine(constant: int, coefficients: Mapping[int, int]) -> Affine:
    """constant + Σ coefficient · variable."""
    return Affine(constant, tuple(sorted((variable, it) for variable, it in coefficients.items() if it)))


@dataclass(frozen=True, slots=True)
class RangeSplit:
    """A variable, and where its range divides: below and from `cut`, or into digits of `size`."""

    variable: int
    cut: int = 0
    size: int = 0

    def parts(self, extent: int) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        """For each part the first value, and extent and stride of the variables that replace the old one."""
        if self.size:
            return [(0, ((extent // self.size, self.size), (self.size, 1)))]
        return [(0, ((self.cut, 1),)), (self.cut, ((extent - self.cut, 1),))]


class Undecided(Exception):
    """A comparison that is neither true nor false on the whole box."""

    def __init__(self, split: RangeSplit) -> None:
        super().__init__(split)
        self.split = split


class Variables:
    """The variables of one box: their extents, and which of them are summed."""

    def __init__(self, free: Sequence[int]) -> None:
        self.extents = list(free)
        self.free = len(self.extents)

    def summed(self, extent: int) -> int:
        """A new variable that is summed over."""
        self.extents.append(extent)
        return len(self.extents) - 1

    def bounds(self, x: Affine) -> tuple[int, int]:
        """Least and largest value of an expression."""
        lo = hi = x.constant
        for variable, coefficient in x.terms:
            reach = coefficient * (self.extents[variable] - 1)
            lo, hi = (lo, hi + reach) if coefficient > 0 else (lo + reach, hi)
        return lo, hi

    def at_least(self, x: Affine, threshold: int) -> bool:
        """Whether x ≥ threshold everywhere on the box, or nowhere. Raises Undecided: somewhere."""
        lo, hi = self.bounds(x)
        if surely_at_least(lo, threshold):
            return True
        if surely_at_least(threshold - 1, hi):
            return False
        raise Undecided(self._cut(x, threshold, lo, hi))

    def inside(self, x: Affine, extent: int) -> bool:
        """Whether 0 ≤ x < extent."""
        return self.at_least(x, 0) and not self.at_least(x, extent)

    def _cut(self, x: Affine, threshold: int, lo: int, hi: int) -> RangeSplit:
        """A cut of a variable of x that helps to decide x ≥ threshold, the most useful one.

        Raises UnsupportedError: sizes alone decide it, and none is known to be the larger one.
        """
        best: tuple[int, int] = (9, 0)
        found: RangeSplit | None = None
        for variable, coefficient in x.terms:
            extent = self.extents[variable]
            if extent == 1:
                continue
            reach = coefficient * (extent - 1)
            low, high = (lo, hi - reach) if coefficient > 0 else (lo - reach, hi)  # of x where the variable is 0
            # From which value on x may reach the threshold, and from which on it surely does (reversed where it falls).
            maybe, surely = (_first(threshold - it, coefficient) for it in (high, low))
            free = variable < self.free
            inside = [it for it in (surely, maybe) if exceeds(it, 0) and exceeds(extent, it)]
            if not inside:
                order, cut = (4 if free else 5), extent // 2
            else:
                order, cut = (1 if free else 0) if is_same(maybe, surely) else (2 if free else 3), inside[0]
            if (order, -int(extent)) < best:
                best, found = (order, -int(extent)), RangeSplit(variable, cut)
        if found is None:  # numbers alone
            raise UnsupportedError(f"got a place {x.constant}, whose order to {threshold} depends on several sizes")
        return found

    def quotient(self, x: Affine, divisor: int) -> tuple[Affine, Affine]:
        """The affine quotient and remainder of x by a whole number, on the whole box.

        Raises Undecided: they are not affine on the whole box.
        """
        quotient: dict[int, int] = {}
        remainder: dict[int, int] = {}
        for variable, coefficient in x.terms:
            whole, left = divmod(coefficient, divisor)
            if left and coefficient < 0:  # a falling index stays one: −1 is not divisor − 1
                whole, left = whole + 1, left - divisor
            quotient[variable], remainder[variable] = whole, left
        rest = affine(x.constant % divisor, remainder)
        lo, hi = self.bounds(rest)
        below = lo // divisor
        if below == hi // divisor:
            return affine(x.constant // divisor + below, quotient), rest.shifted(-below * divisor)
        for variable, coefficient in rest.terms:
            extent, period = self.extents[variable], divisor // gcd(coefficient, divisor)
            if extent > period:
                digits = extent % period == 0
                raise Undecided(
                    RangeSplit(variable, size=period) if digits else RangeSplit(variable, extent // period * period)
                )
        raise Undecided(self._cut(rest, (below + 1) * divisor, lo, hi))


def _first(distance: int, coefficient: int) -> int:
    """The first v from which on coefficient · v is at or above `distance`; below it, for a negative coefficient."""
    return -(-distance // coefficient) if coefficient > 0 else distance // coefficient + 1
