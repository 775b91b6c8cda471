"""Exponentials in the body of an exported function that cannot leave their range, as in kernels and in `shifted_floats`.

A value is kept as array · exp(log), both names of values of the body: a product adds the logarithms, and a sum first divides by
its largest term. A value is a plain number again where the powers of the exponential have cancelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from mirage_eg.frontend.onnx_bodies import OnnxBody, OnnxValue, write_node
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node, TensorType, is_zero
from mirage_eg.ir.op.elementwise import FACTORS, TERMS, power_of
from mirage_eg.ir.ops import Kind


@dataclass(frozen=True, slots=True)
class Exponential:
    """array · exp(log), both broadcast to the shape of `type`; `degree` is the power of the exponential in it."""

    array: str
    log: str
    type: TensorType
    degree: Fraction = Fraction(1)


Value = OnnxValue | Exponential


@dataclass(slots=True)
class ShiftedBody:
    """Writes ops into a body; `zeros` are the names of constants of 0, which have every degree."""

    body: OnnxBody
    zeros: set[str] = field(default_factory=set)

    def value(self, item: Node, operands: Sequence[Value], result: TensorType) -> Value:
        """The value of an op."""
        if item.op == "exp":
            exponent = self.number(operands[0]).name
            is_finite = self.body.append("Not", self._equal(exponent, -np.inf))
            return Exponential(self.body.cast(is_finite, self.body.held(result.dtype)), exponent, result)
        if any(isinstance(operand, Exponential) for operand in operands):
            made = self._homogeneous(item, operands, result)
            if made is not None:
                return made if made.degree else self.number(made)
        if item.op == "log" and isinstance(x := operands[0], Exponential):
            own = self._written(item, [x.array], [x], result)
            return OnnxValue(self.body.append("Add", own, x.log), result)
        name = write_node(self.body, item, [self.number(operand) for operand in operands], result)
        if is_zero(item):
            self.zeros.add(name)
        return OnnxValue(name, result)

    def number(self, x: Value) -> OnnxValue:
        """x as one value, out of range or not."""
        if isinstance(x, OnnxValue):
            return x
        return OnnxValue(self._relative(x, None), x.type)

    def _homogeneous(self, item: Node, operands: Sequence[Value], result: TensorType) -> Exponential | None:
        """The value of an op that keeps a factor on the exponential apart; None for others."""
        degrees = [x.degree if isinstance(x, Exponential) else Fraction(0) for x in operands]
        kind = item.kind
        if kind is Kind.REDUCTION:
            return self._reduced(item, operands[0], result)
        if kind is Kind.MATMUL:
            return self._multiplied(item, operands, result)
        if kind is Kind.REARRANGEMENT or item.op == "split":
            whole = [self._whole(x) for x in operands if isinstance(x, Exponential)]
            if len(whole) < len(operands) or len(set(degrees)) > 1:
                return None
            parts = [[x.array for x in whole], [x.log for x in whole]]
            array, log = (self._written(item, names, whole, result) for names in parts)
            return Exponential(array, log, result, degrees[0])
        arrays = [x.array if isinstance(x, Exponential) else x.name for x in operands]
        match item.op:
            case op if op in FACTORS:
                _, sign = FACTORS[op]
                log = self._summed([self._log(x) for x in operands], "Add" if sign == 1 else "Sub")
                degree = degrees[0] + sign * degrees[1]
                return Exponential(self._written(item, arrays, operands, result), log, result, degree)
            case op if op in TERMS and degrees[0] == degrees[1]:
                own = [x for x in operands if isinstance(x, Exponential)]
                log = self.body.append("Max", *(self._counted(x) for x in own))
                return Exponential(
                    self._written(item, [self._relative(x, log) for x in own], own, result), log, result, degrees[0]
                )
            case "where" if not degrees[0]:
                sides = {degree for x, degree in zip(operands, degrees, strict=True) if not self._is_zero(x)} - {Fraction(0)}
                plain = [isinstance(x, OnnxValue) and not self._is_zero(x) for x in operands[1:]]
                if len(sides) != 1 or any(plain):
                    return None
                condition = self.body.cast(arrays[0], DType.bool)
                log = self.body.append("Where", condition, *(self._log(x) or self._constant(0) for x in operands[1:]))
                return Exponential(self._written(item, arrays, operands, result), log, result, sides.pop())
            case _:
                power = power_of(item.op, item.mapping)
                if power is None:
                    return None
                log = self._log(operands[0]) or self._constant(0)
                log = log if power == 1 else self.body.append("Mul", log, self._constant(float(power)))
                return Exponential(self._written(item, arrays, operands, result), log, result, degrees[0] * power)

    def _reduced(self, item: Node, x: Value, result: TensorType) -> Exponential:
        assert isinstance(x, Exponential)
        x = self._whole(x)
        log = self._largest(x, item["dim"])
        return Exponential(self._written(item, [self._relative(x, log)], [x], result), log, result, x.degree)

    def _multiplied(self, item: Node, operands: Sequence[Value], result: TensorType) -> Exponential:
        """A product of matrices, each row and column relative to its largest entry."""
        names, logs, degree = list[str](), list[str | None](), Fraction(0)
        for operand, axis in zip(operands, (-1, -2), strict=True):
            if isinstance(operand, Exponential):
                x = self._whole(operand)
                log = self._largest(x, len(x.type.shape) + axis)
                names.append(self._relative(x, log))
                logs.append(log)
                degree += x.degree
            else:
                names.append(operand.name)
                logs.append(None)
        return Exponential(self._written(item, names, operands, result), self._summed(logs, "Add"), result, degree)

    def _written(self, item: Node, names: Sequence[str], operands: Sequence[Value], result: TensorType) -> str:
        """The op on other values of the operands' types."""
        pairs = zip(names, operands, strict=True)
        given = [OnnxValue(name, x.type, not isinstance(x, OnnxValue) or x.computed) for name, x in pairs]
        return write_node(self.body, item, given, result)

    def _is_zero(self, x: Value) -> bool:
        return isinstance(x, OnnxValue) and x.name in self.zeros

    def _log(self, x: Value) -> str | None:
        return x.log if isinstance(x, Exponential) else None

    def _summed(self, logs: Sequence[str | None], op: str) -> str:
        """The sum or difference of two logarithms, of which one may be 0."""
        first, second = logs
        if second is None:
            return first or self._constant(0)
        if first is None:
            return second if op == "Add" else self.body.append("Neg", second)
        return self.body.append(op, first, second)

    def _whole(self, x: Exponential) -> Exponential:
        """Both parts in the shape of the value."""
        shape = self.body.numbers(*x.type.shape)
        array, log = (self.body.append("Expand", name, shape) for name in (x.array, x.log))
        return Exponential(array, log, x.type, x.degree)

    def _largest(self, x: Exponential, dim: int) -> str:
        return self.body.append("ReduceMax", self._counted(x), self.body.numbers(dim), keepdims=1)

    def _counted(self, x: Exponential) -> str:
        """The logarithms, −∞ where a factor of 0 leaves nothing."""
        return self.body.append("Where", self._equal(x.array, 0.0), self._constant(-np.inf), x.log)

    def _relative(self, x: Exponential, log: str | None) -> str:
        """The number divided by exp(log), by 1 where that is 0: then so is the number."""
        counted = self._counted(x)
        if log is not None:
            least = self.body.append("Where", self._equal(log, -np.inf), self._constant(0), log)
            counted = self.body.append("Sub", counted, least)
        return self.body.append("Mul", x.array, self.body.append("Exp", counted))

    def _equal(self, x: str, number: float) -> str:
        return self.body.append("Equal", x, self._constant(number))

    def _constant(self, number: float) -> str:
        return self.body.number(number, DType.float32)
