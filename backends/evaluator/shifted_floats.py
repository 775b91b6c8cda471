"""Floating-point numbers with exponentials that cannot leave their range. Part of the trusted core.

A value is stored as array · exp(log), where `log` may have an entry for each element: multiplication adds the logarithms, and a
sum first divides by the largest. A value becomes a plain number again where the powers of the exponential have cancelled. A
logarithm is a sum of two numbers until it is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array, Numbers
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.elementwise import FACTORS, TERMS, power_of
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes, Shape


@dataclass(frozen=True, slots=True)
class Shifted:
    """array · exp(log), both broadcast to one shape; `degree` is the power of the exponential in it."""

    array: Array
    log: Array
    degree: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Logarithm:
    """array + log, the logarithm of a Shifted: `log` goes to what it is subtracted from first, since both are often close."""

    array: Array
    log: Array


Value = Any  # an array, a Shifted or a Logarithm


@dataclass(frozen=True, slots=True)
class ShiftedFloats:
    """The numbers of `plain`, except for exponentials and the values computed from them.

    With `keeps_logarithms` a logarithm that is stored is still a sum of two numbers, as inside torch's log_softmax. With
    `keeps_range` a number beyond the range of its type is not infinite, as a score inside torch's attention.
    """

    plain: Numbers
    keeps_logarithms: bool = False
    keeps_range: bool = False

    def shape(self, x: Value) -> Shape:
        return self.plain.shape(x) if _is_number(x) else np.broadcast_shapes(x.array.shape, x.log.shape)

    def elementwise(self, op: str, operands: Sequence[Value], attributes: Attributes) -> Value:
        """Homogeneous ops on both parts; others on the number; a fill on the shape."""
        if op == "fill":
            return self.plain.elementwise(op, [x if _is_number(x) else self._parts(x)[0] for x in operands], attributes)
        if op == "exp":
            [x] = self._wide(operands)
            return Shifted((x != -np.inf).astype(x.dtype), x)
        if op in TERMS and any(isinstance(x, Logarithm) for x in operands):
            operands = self._after_logarithms(op, operands, attributes)
        operands = [self.number(x) if isinstance(x, Logarithm) else x for x in operands]
        if not _any_shifted(operands):
            return self.plain.elementwise(op, operands, attributes)
        if op == "log":
            [x] = operands
            plain = self.plain.elementwise(op, [x.array], attributes)
            return Logarithm(self.plain.xp.where(x.log == np.inf, 0, plain), x.log)
        with np.errstate(all="ignore"):  # logarithms may be infinite
            made = self._homogeneous(op, list(map(self._shifted, operands)), attributes)
        if made is None:
            return self.plain.elementwise(op, self._wide(operands), attributes)
        return made if made.degree else self.number(made)

    def _after_logarithms(self, op: str, operands: Sequence[Value], attributes: Attributes) -> list[Array]:
        """The operands of a sum or difference, those that are logarithms without their `log`, which the other one has."""
        x, y = (operand.array if isinstance(operand, Logarithm) else self.number(operand) for operand in operands)
        first, second = operands
        if isinstance(second, Logarithm):
            x = self.plain.elementwise(op, [x, second.log], attributes)
        if isinstance(first, Logarithm):
            y = self.plain.elementwise(op, [y, first.log], attributes)
        return [x, y]

    def _homogeneous(self, op: str, x: list[Shifted], attributes: Attributes) -> Shifted | None:
        arrays = [value.array for value in x]
        match op:
            case _ if op in FACTORS:
                _, sign = FACTORS[op]
                array = self.plain.elementwise(op, arrays, attributes)
                return Shifted(array, x[0].log + sign * x[1].log, x[0].degree + sign * x[1].degree)
            case _ if op in TERMS and x[0].degree == x[1].degree:
                log = self.plain.xp.maximum(self._counted(x[0]), self._counted(x[1]))
                return Shifted(
                    self.plain.elementwise(op, [self._relative(value, log) for value in x], attributes), log, x[0].degree
                )
            case "where" if not x[0].degree and (degree := _common_degree(x[1:])) is not None:
                log = self.plain.xp.where(x[0].array > 0.5, x[1].log, x[2].log)
                return Shifted(self.plain.elementwise(op, arrays, attributes), log, degree)
        power = power_of(op, attributes)
        if power is None:
            return None
        log = x[0].log * float(power) if power else self.plain.xp.zeros_like(x[0].log)
        return Shifted(self.plain.elementwise(op, arrays, attributes), log, x[0].degree * power)

    def reduce(self, kind: str, x: Value, axes: tuple[int, ...]) -> Value:
        """Of numbers relative to the largest."""
        if not isinstance(x, Shifted):
            return self.plain.reduce(kind, self.number(x), axes)
        log = self._counted(x).max(axis=axes, keepdims=True)
        return Shifted(self.plain.reduce(kind, self._relative(x, log), axes), log, x.degree)

    def matmul(self, x: Value, y: Value) -> Value:
        """Of numbers relative to the largest of each row and column that is multiplied by something else than 0."""
        if not isinstance(x, Shifted) and not isinstance(y, Shifted):
            return self.plain.matmul(self.number(x), self.number(y))
        x, y = self._shifted(x), self._shifted(y)
        left = (self._whole(x).array != 0).any(axis=-2)[..., :, None]
        right = (self._whole(y).array != 0).any(axis=-1)[..., None, :]
        rows, columns = self._row(self._where(right, x), -1), self._row(self._where(left, y), -2)
        with np.errstate(invalid="ignore"):  # a row of zeros times an infinite column
            log = rows.log + columns.log
        made = Shifted(self.plain.matmul(rows.array, columns.array), log, rows.degree + columns.degree)
        return made if made.degree else self.number(made)

    def rearrange(self, row: Op, operands: Sequence[Value], lead: int, attributes: Attributes) -> Value:
        """Of both parts."""
        if len(operands) == 1 and isinstance(operands[0], Logarithm):
            parts = self._parts(operands[0])
            return Logarithm(*(self.plain.rearrange(row, [part], lead, attributes) for part in parts))
        if not _any_shifted(operands):
            return self.plain.rearrange(row, list(map(self.number, operands)), lead, attributes)
        whole = [self._whole(self._shifted(x)) for x in operands]
        if len({x.degree for x in whole}) > 1:
            return self.plain.rearrange(row, self._wide(operands), lead, attributes)
        arrays = self.plain.rearrange(row, [x.array for x in whole], lead, attributes)
        return Shifted(arrays, self.plain.rearrange(row, [x.log for x in whole], lead, attributes), whole[0].degree)

    def library(self, row: Op, operands: Sequence[Value], lead: int, attributes: Attributes) -> Value:
        """Of numbers."""
        return self.plain.library(row, list(map(self.number, operands)), lead, attributes)

    def view(self, x: Value, shape: Shape, move: Callable[[Array], Array]) -> Value:
        """Of both parts."""
        if isinstance(x, Logarithm):
            return Logarithm(*map(move, self._parts(x)))
        if not isinstance(x, Shifted):
            return self.plain.view(x, shape, move)
        whole = self._whole(x)
        return Shifted(move(whole.array), move(whole.log), x.degree)

    def join(self, pieces: Sequence[Value], axis: int) -> Value:
        """Of both parts."""
        if all(isinstance(piece, Logarithm) for piece in pieces):
            return Logarithm(*(self.plain.join(parts, axis) for parts in zip(*map(self._parts, pieces), strict=True)))
        if not _any_shifted(pieces):
            return self.plain.join(list(map(self.number, pieces)), axis)
        whole = [self._whole(self._shifted(x)) for x in pieces]
        arrays = self.plain.join([x.array for x in whole], axis)
        return Shifted(arrays, self.plain.join([x.log for x in whole], axis), whole[0].degree)

    def cast(self, x: Value, dtype: DType) -> Value:
        """Of a plain number; shifted ones are at most as large as what they are multiplied with, and not rounded."""
        if isinstance(x, Shifted) or (isinstance(x, Logarithm) and self.keeps_logarithms):
            return x
        number = self.number(x)
        rounded = self.plain.cast(number, dtype)
        if not self.keeps_range or rounded.dtype.kind != "f":
            return rounded
        return self.plain.xp.where(self.plain.xp.isinf(rounded), number, rounded)

    def number(self, x: Value) -> Array:
        """x as one array, out of range or not."""
        if isinstance(x, Logarithm):
            return self.plain.elementwise("add", [x.array, x.log], {})
        if not isinstance(x, Shifted):
            return x
        with np.errstate(all="ignore"):
            return x.array * self.plain.xp.exp(self._counted(x))

    def _wide(self, operands: Sequence[Value]) -> list[Array]:
        return [self.number(x).astype(self._type(), copy=False) for x in operands]

    def _type(self) -> Any:
        return self.plain.xp.dtype(str(self.plain.working))

    def _shifted(self, x: Value) -> Shifted:
        x = self.number(x) if isinstance(x, Logarithm) else x
        return x if isinstance(x, Shifted) else Shifted(x, self.plain.xp.zeros([1] * x.ndim, self._type()), Fraction(0))

    def _whole(self, x: Shifted) -> Shifted:
        return Shifted(*self._parts(x), x.degree)

    def _parts(self, x: Shifted | Logarithm) -> tuple[Array, Array]:
        """Both parts, in one shape."""
        shape = self.shape(x)
        return self.plain.xp.broadcast_to(x.array, shape), self.plain.xp.broadcast_to(x.log, shape)

    def _where(self, counts: Array, x: Shifted) -> Shifted:
        return x if counts.all() else Shifted(self.plain.xp.where(counts, x.array, 0), x.log, x.degree)

    def _row(self, x: Shifted, axis: int) -> Shifted:
        log = self._counted(x).max(axis=axis, keepdims=True)
        return Shifted(self._relative(x, log), log, x.degree)

    def _counted(self, x: Shifted) -> Array:
        """The logarithms, −∞ where a factor of 0 leaves nothing."""
        return self.plain.xp.where(x.array != 0, x.log, -np.inf)

    def _relative(self, x: Shifted, log: Array) -> Array:
        """The number divided by exp(log), by 1 where that is 0: then so is the number."""
        with np.errstate(all="ignore"):
            return x.array * self.plain.xp.exp(self._counted(x) - self.plain.xp.where(log == -np.inf, 0, log))


def _is_number(x: Value) -> bool:
    return not isinstance(x, Shifted | Logarithm)


def _common_degree(values: Sequence[Shifted]) -> Fraction | None:
    """The degree of all values; one of zeros alone has every degree."""
    degrees = {x.degree for x in values if x.array.any()}
    return None if len(degrees) > 1 else next(iter(degrees), Fraction(0))


def _any_shifted(values: Sequence[Value]) -> bool:
    return any(isinstance(x, Shifted) for x in values)
