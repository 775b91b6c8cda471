"""The algebra of polynomial degrees, for the Schwartz–Zippel bound. Trusted.

A value built from inputs by +, −, ·, division and constants is N/D for polynomials N, D, and is defined where H ≠ 0, H the
product of all divisors. A value has upper bounds of the degrees of its elements; `beyond` has the ops that are not rational
functions; if there are any, the degrees have no meaning.

    N, D, H   degrees of numerator, denominator and product of divisors (D divides H)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.elementwise import record_of
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes, Shape, broadcast

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Degree:
    """Upper bounds of the degrees N, D, H."""

    n: int
    d: int
    h: int

    def plus(self, other: "Degree") -> "Degree":
        """Of a sum, over the product of the denominators."""
        return Degree(max(self.n + other.d, other.n + self.d), self.d + other.d, self.h + other.h)

    @property
    def of_constant(self) -> "Degree":
        """Of a constant."""
        return Degree(0, 0, 0)

    def times(self, other: "Degree") -> "Degree":
        """Of a product."""
        return Degree(self.n + other.n, self.d + other.d, self.h + other.h)

    def inverse(self) -> "Degree":
        """Of 1/x, which is undefined where the numerator is 0."""
        return Degree(self.d, self.n, self.h + self.n)

    def power(self, exponent: int) -> "Degree":
        """Of a whole power."""
        base = self.inverse() if exponent < 0 else self
        return Degree(base.n * abs(exponent), base.d * abs(exponent), base.h)

    def summed(self, count: int) -> "Degree":
        """Of a sum of `count` different values."""
        return Degree(self.n + (count - 1) * self.d, count * self.d, count * self.h)


@dataclass(frozen=True, slots=True)
class DegreeValue:
    """A shape, degrees, and those ancestors of the value that are not rational functions."""

    extents: Shape
    degree: Degree
    beyond: frozenset[str] = NOTHING


@dataclass(frozen=True, slots=True)
class DegreeAlgebra:
    """Degrees of every value of a graph."""

    def input(self, shape: Shape, whole: bool = False) -> DegreeValue:
        """Each element is a variable of its own; a whole number is no uniform one."""
        return DegreeValue(shape, Degree(1, 0, 0), frozenset({"whole numbers"}) if whole else NOTHING)

    def shape(self, x: DegreeValue) -> Shape:
        return x.extents

    def elementwise(self, op: str, operands: Sequence[DegreeValue], attributes: Attributes) -> DegreeValue:
        """By the op's record; other ops than rational functions are beyond it."""
        shape, record = broadcast([x.extents for x in operands], {}), record_of(op)
        rational = None if record is None else record.degree
        degree: Degree | None = None if rational is None else rational(*(x.degree for x in operands), **attributes)
        if degree is None:
            return DegreeValue(shape, operands[0].degree, _beyond(operands) | {op})
        return DegreeValue(shape, degree, _beyond(operands))

    def reduce(self, kind: str, x: DegreeValue, axes: tuple[int, ...]) -> DegreeValue:
        rank = len(x.extents)
        shape = tuple(1 if i - rank in axes else extent for i, extent in enumerate(x.extents))
        degree = x.degree.summed(prod(x.extents[axis] for axis in axes))
        return DegreeValue(shape, degree, x.beyond | {kind} if kind == "max" else x.beyond)

    def matmul(self, x: DegreeValue, y: DegreeValue) -> DegreeValue:
        """A sum of K products."""
        shape = (*broadcast((x.extents[:-2], y.extents[:-2]), {}), x.extents[-2], y.extents[-1])
        return DegreeValue(shape, x.degree.times(y.degree).summed(x.extents[-1]), x.beyond | y.beyond)

    def rearrange(self, row: Op, operands: Sequence[DegreeValue], lead: int, attributes: Attributes) -> DegreeValue:
        """The largest degrees of the operands."""
        leading = broadcast([x.extents[:lead] for x in operands], {})
        shape = (*leading, *row.shape([x.extents[lead:] for x in operands], attributes))
        return DegreeValue(shape, _largest(operands), _beyond(operands))

    def library(self, row: Op, operands: Sequence[DegreeValue], lead: int, attributes: Attributes) -> DegreeValue:
        """Sums, constants and patches; orders and moves by indices are beyond."""
        leading = broadcast([x.extents[:lead] for x in operands], {}) if operands else (1,) * lead
        shape = (*leading, *row.shape([x.extents[lead:] for x in operands], attributes))
        op = LIBRARY.get(row.name)
        if not operands:
            return DegreeValue(shape, Degree(0, 0, 0))
        if op is None:  # a move to constant places
            return DegreeValue(shape, _largest(operands), _beyond(operands))
        if op.terms is None:
            return DegreeValue(shape, _largest(operands), _beyond(operands) | {row.name})
        products = reduce(Degree.times, (x.degree for x in operands))
        terms = op.terms([x.extents[lead:] for x in operands], attributes)
        return DegreeValue(shape, products.summed(terms), _beyond(operands))

    def view(self, x: DegreeValue, shape: Shape, move: Callable[[Array], Array]) -> DegreeValue:
        """The same degrees under another shape."""
        return DegreeValue(shape, x.degree, x.beyond)

    def join(self, pieces: Sequence[DegreeValue], axis: int) -> DegreeValue:
        """The largest degrees of the pieces."""
        extents = list(pieces[0].extents)
        extents[axis] = sum(piece.extents[axis] for piece in pieces)
        return DegreeValue(tuple(extents), _largest(pieces), _beyond(pieces))

    def cast(self, x: DegreeValue, dtype: DType) -> DegreeValue:
        """Degrees do not round."""
        return x


def of_difference(x: Degree, y: Degree) -> int:
    """The degree of (N₁D₂ − N₂D₁)·H₁·H₂: zero wherever x and y are equal or one of them is undefined."""
    return max(x.n + y.d, y.n + x.d) + x.h + y.h


def _largest(values: Sequence[DegreeValue]) -> Degree:
    degrees = [value.degree for value in values]
    return Degree(max(x.n for x in degrees), max(x.d for x in degrees), max(x.h for x in degrees))


def _beyond(values: Sequence[DegreeValue]) -> frozenset[str]:
    return NOTHING.union(*(value.beyond for value in values))
