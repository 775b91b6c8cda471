"""The models of the rule domains, in which laws are tested: values of expressions.

indexed: a tensor over named parts; Sum, Mean and Max reduce the part that they name. abstract: a number; Sum n x is n·x, Mean n
x and Max n x are x, as if all n summands were equal. Every value is an array with one dim for each part, of extent 1 where it
does not vary; `axes` are the parts that the laws of `axes` derive for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Protocol

import mpmath
import numpy as np

from mirage_eg.backends.evaluator import floating_point, mpmath_ops
from mirage_eg.egraph.expression import CONSTANT, INDEX_TERMS, op_of, parts_in
from mirage_eg.ir.op.elementwise import COMPARISONS
from mirage_eg.ir.ops import OPS, Kind

Array = Any
_MOST_BITS_OF_RATIONALS = 4_096  # longer ones are rounded


class UndefinedError(ArithmeticError):
    """An undefined value: a division by zero, the root of a negative number, an overflow."""


class MeaninglessError(UndefinedError):
    """A slice or concatenation whose index does not fit: a law that matches it claims nothing."""


def extent_of(sizes: Mapping[str, int], index: str) -> int:
    """The number of values of an index. Raises MeaninglessError: it names a part twice, or one without a size."""
    parts = parts_in(index)
    if len({*parts}) < len(parts) or not sizes.keys() >= {*parts}:
        raise MeaninglessError(f"no index {index!r}")
    return prod(sizes[part] for part in parts)


class Arithmetic(Protocol):
    """Elementwise ops on arrays of some kind of number."""

    def array(self, entries: Array) -> Array:
        """Exact rationals as numbers of this kind."""
        ...

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        """An op of the op table."""
        ...

    def equal(self, left: Array, right: Array) -> bool:
        """Whether two arrays are equal up to the precision of this arithmetic."""
        ...


class Float64:
    """Float64: fast, but a difference needs confirmation."""

    def array(self, entries: Array) -> Array:
        """The nearest float64."""
        return np.asarray(entries, dtype=np.float64)

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        """By the table of `backends.evaluator.floating_point`."""
        with np.errstate(all="ignore"):
            result = floating_point.ELEMENTWISE[op](np, *operands, **attributes)
        if not np.all(np.isfinite(result)):
            raise UndefinedError("not a finite number")
        return result

    def equal(self, left: Array, right: Array) -> bool:
        """To nine digits of the larger."""
        return bool(np.all(np.abs(left - right) <= 1e-9 * np.maximum(np.abs(left), np.abs(right)) + 1e-300))


class MaskedFloat64:
    """Float64 with not-a-number for undefined values: many samples at once."""

    def array(self, entries: Array) -> Array:
        """The nearest float64."""
        return np.asarray(entries, dtype=np.float64)

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        """By the table of `backends.evaluator.floating_point`; undefined where an operand is, but of a selection."""
        with np.errstate(all="ignore"):
            result = floating_point.ELEMENTWISE[op](np, *operands, **attributes)
            defined = np.isfinite(result)
            for operand in () if OPS[op].selects else operands:
                defined = defined & np.isfinite(operand)
            return np.where(defined, result, np.nan)

    def equal(self, left: Array, right: Array) -> bool:
        """Nearly, and undefined at the same samples."""
        return bool(np.allclose(left, right, equal_nan=True))


@dataclass(frozen=True, slots=True)
class ManyDigits:
    """mpmath's numbers; numbers beyond 2^±most_bits count as overflows, so that a subtraction keeps some digits.

    With `joins`, numbers stand for irrational ones: results below `least` are 0, and a comparison takes numbers that are nearer
    for equal.
    """

    digits: int = mpmath_ops.DIGITS
    most_bits: int | None = None
    joins: bool = False

    @property
    def least(self) -> Any:
        """The size of the numbers that half of the digits are for."""
        return mpmath.mpf(10) ** (-self.digits // 2)

    def array(self, entries: Array) -> Array:
        """Exact rationals."""
        return np.asarray(np.frompyfunc(Fraction, 1, 1)(np.asarray(entries, dtype=object)), dtype=object)

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        """By the tables of `backends.evaluator.mpmath_ops`: exact while all numbers are short rationals."""
        exactly, nearly = mpmath_ops.RATIONAL.get(op), mpmath_ops.ELEMENTWISE[op]

        def compute(*numbers: Any) -> Any:
            if self.joins and op in COMPARISONS and self._near(*numbers):
                numbers = (numbers[0], numbers[0])
            try:
                if exactly is not None and all(isinstance(it, Fraction) for it in numbers):
                    return self._in_range(self._short(exactly(*numbers, **attributes)))
                return self._in_range(nearly(*map(as_mpf, numbers), **attributes))
            except (ZeroDivisionError, OverflowError):
                raise UndefinedError(op) from None

        with mpmath.workdps(self.digits):
            return np.asarray(np.frompyfunc(compute, len(operands), 1)(*operands), dtype=object)

    def _near(self, x: Any, y: Any) -> bool:
        """Whether two numbers are equal to half of the digits, counted from 1 where they are smaller."""
        return x == y or bool(abs(as_mpf(x) - as_mpf(y)) <= self.least * max(1, abs(as_mpf(x)), abs(as_mpf(y))))

    def _short(self, number: Fraction) -> Any:
        bits = number.numerator.bit_length() + number.denominator.bit_length()
        return number if bits <= _MOST_BITS_OF_RATIONALS else as_mpf(number)

    def _in_range(self, number: Any) -> Any:
        if self.joins and abs(as_mpf(number)) < self.least:
            return Fraction(0)
        if isinstance(number, Fraction):
            magnitude = number.numerator.bit_length() - number.denominator.bit_length()
        elif mpmath.isfinite(number):
            magnitude = mpmath.mag(number)
        else:
            raise UndefinedError("not a finite number")
        if self.most_bits is not None and number and abs(magnitude) > self.most_bits:
            raise UndefinedError("overflow")
        return number

    def equal(self, left: Array, right: Array) -> bool:
        """To half of the digits, counted from 1 where the numbers are smaller, since differences lose digits."""

        with mpmath.workdps(self.digits):
            return bool(np.all(np.frompyfunc(self._near, 2, 1)(left, right)))


def as_mpf(number: Any) -> Any:
    """A rational with the digits of mpmath's context."""
    return mpmath_ops.number(number) if isinstance(number, Fraction) else number


FLOAT64 = Float64()
MANY_DIGITS = ManyDigits()


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A value and the parts that it may vary with."""

    array: Array
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Model:
    """A domain's model; `sizes` gives every part its extent (none in the abstract domain)."""

    domain: str
    arithmetic: Arithmetic
    sizes: Mapping[str, int]

    def tensor(self, entries: Array, axes: frozenset[str]) -> TensorValue:
        """A variable: `entries` are exact rationals with one dim for each part."""
        return TensorValue(self.arithmetic.array(entries), axes)

    def apply(self, constructor: str, constants: Sequence[Any], operands: Sequence[TensorValue]) -> TensorValue:
        """A constructor of an op, or a constant. Raises UndefinedError: the value is undefined."""
        if constructor in INDEX_TERMS:
            return self._with_indices(constructor, constants, operands)
        if constructor == CONSTANT:
            entries = np.full((1,) * len(self.sizes), constants[0], dtype=object)
            return TensorValue(self.arithmetic.array(entries), frozenset())
        op = op_of(constructor)
        assert op is not None
        row = OPS[op]
        axes = frozenset[str]().union(*(operand.axes for operand in operands))
        if row.kind is Kind.REDUCTION:
            return self._reduce(op, constants[0], operands[0])
        attributes = dict(zip(row.attributes, constants, strict=True))
        return TensorValue(self.arithmetic.elementwise(op, [operand.array for operand in operands], attributes), axes)

    def _reduce(self, op: str, over: Any, x: TensorValue) -> TensorValue:
        if self.domain == "abstract":
            if over < 1:
                raise UndefinedError("a sum of no summands")
            return self._scaled(x, Fraction(over), x.axes) if op == "sum" else x
        if over not in self.sizes:
            raise MeaninglessError(f"no part {over}")
        dim, size = list(self.sizes).index(over), self.sizes[over]
        axes = x.axes - {over}
        if x.array.shape[dim] == 1:
            return self._scaled(x, Fraction(size), axes) if op == "sum" else TensorValue(x.array, axes)
        slices = np.split(x.array, size, axis=dim)
        total = slices[0]
        for entry in slices[1:]:
            total = self.arithmetic.elementwise(OPS[op].combines, [total, entry], {})
        return self._scaled(TensorValue(total, axes), Fraction(1, size), axes) if op == "mean" else TensorValue(total, axes)

    def _scaled(self, x: TensorValue, factor: Fraction, axes: frozenset[str]) -> TensorValue:
        return TensorValue(self.arithmetic.elementwise("scale", [x.array], {"factor": factor}), axes)

    def _with_indices(self, constructor: str, constants: Sequence[Any], operands: Sequence[TensorValue]) -> TensorValue:
        match constructor, constants:
            case "Slice", (source, target, start, step):
                count = extent_of(self.sizes, target)
                if start < 0 or step < 1 or start + step * (count - 1) >= extent_of(self.sizes, source):
                    raise MeaninglessError(f"{source} has no values {start} + {step}·{target}")
                return self._at(operands[0], source, target, start + step * np.arange(count))
            case "Concat", (result, first, second, place):
                one, two = (extent_of(self.sizes, index) for index in (first, second))
                if (place, one + two) != (one, extent_of(self.sizes, result)):
                    raise MeaninglessError(f"{first} and {second} do not make {result}")
                both = np.arange(one + two)
                x = self._at(operands[0], first, result, np.minimum(both, one - 1))
                y = self._at(operands[1], second, result, np.maximum(both - one, 0))
                below = self._index(result) < one
                return TensorValue(np.where(below, x.array, y.array), x.axes | y.axes | {*parts_in(result)})
            case _, (index,):
                extent_of(self.sizes, index)
                [x] = operands
                for part in parts_in(index):
                    x = self._reduce("sum" if constructor == "SumOver" else "max", part, x)
                return x
        raise AssertionError(constructor)

    def _index(self, index: str) -> Array:
        """The values of an index, as an array over its parts."""
        value = np.zeros((1,) * len(self.sizes), np.int64)
        for part in parts_in(index):
            shape = [size if other == part else 1 for other, size in self.sizes.items()]
            value = value * self.sizes[part] + np.arange(self.sizes[part]).reshape(shape)
        return value

    def _at(self, x: TensorValue, source: str, target: str, taken: Array) -> TensorValue:
        """x with `taken` at the values of `target` for the values of `source`."""
        changed, names = parts_in(source), list(self.sizes)
        if all(x.array.shape[names.index(part)] == 1 for part in changed):
            axes = x.axes if x.axes.isdisjoint(changed) else x.axes.difference(changed) | {*parts_in(target)}
            return TensorValue(x.array, axes)
        value = taken[self._index(target)]
        own: dict[str, Array] = {}
        for part in reversed(changed):
            own[part], value = value % self.sizes[part], value // self.sizes[part]
        index: list[Array] = []
        for dim, part in enumerate(names):
            if x.array.shape[dim] == 1:
                index.append(np.zeros((1,) * len(names), np.int64))
            else:
                index.append(own.get(part, self._index(part)))
        return TensorValue(x.array[tuple(np.broadcast_arrays(*index))], x.axes.difference(changed) | {*parts_in(target)})

    def varies_with(self, x: TensorValue) -> frozenset[str]:
        """The parts that the entries of x vary with."""

        def varies(dim: int) -> bool:
            first = x.array.take([0], axis=dim)
            return not self.arithmetic.equal(x.array, np.broadcast_to(first, x.array.shape))

        return frozenset(part for dim, part in enumerate(self.sizes) if x.array.shape[dim] > 1 and varies(dim))
