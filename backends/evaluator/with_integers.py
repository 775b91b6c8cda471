"""Numbers of which integers are computed in their own width: they wrap as torch's do, and are exact where floats are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator import library_ops
from mirage_eg.backends.evaluator.algebra import Array, ArrayMoves
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import ProgramError
from mirage_eg.ir.op.elementwise import CASTS, PACKAGED
from mirage_eg.ir.ops import OPS, Op
from mirage_eg.ir.shapes import Attributes


@dataclass(frozen=True, slots=True)
class WithIntegers(ArrayMoves):
    """The numbers of `plain`, which rounds; arrays of integers stay arrays of integers."""

    plain: FloatAlgebra

    @property
    def xp(self) -> Any:
        return self.plain.xp

    @property
    def working(self) -> DType:
        """The type of arithmetic of the other numbers."""
        return self.plain.working

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Attributes) -> Array:
        """In 64 bits where all operands are integers; a condition of `where` is none."""
        if op in CASTS:
            return self.cast(operands[0], DType(attributes["dtype"]))
        if not all(map(_is_whole, operands[OPS[op].conditions :])):
            return self.plain.elementwise(op, operands, attributes)
        record = PACKAGED[op]
        compute = record.whole if callable(record.whole) else record.numbers
        assert compute is not None and record.whole
        given = {name: _wrapped(value) for name, value in attributes.items()}
        conditions, numbers = operands[: record.conditions], operands[record.conditions :]
        with np.errstate(all="ignore"):  # the evaluator casts the result to its type, which wraps
            return compute(np, *conditions, *(x.astype(np.int64) for x in numbers), **given)

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...]) -> Array:
        if not _is_whole(x):
            return self.plain.reduce(kind, x, axes)
        if kind == "max":
            return x.max(axis=axes, keepdims=True)
        assert kind == "sum"
        return x.sum(axis=axes, keepdims=True, dtype=np.int64)

    def matmul(self, x: Array, y: Array) -> Array:
        """Of integers, which have eight bits, exact in float64, and in 32 bits."""
        if _is_whole(x) and _is_whole(y):
            return FloatAlgebra(self.xp).matmul(x, y).astype(np.int64).astype(np.int32)
        return self.plain.matmul(x, y)

    def library(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """Elements that are integers stay integers; so do indices. Raises ProgramError: an index is out of range."""
        if row.indices is not None:
            _check_range(row.name, operands[row.indices], operands[0].shape[lead + attributes["dim"]])
        data = [x for place, x in enumerate(operands) if place != row.indices]
        if not data or not all(map(_is_whole, data)):
            return self.plain.library(row, operands, lead, attributes)
        if row.rearrange is None:
            return library_ops.computed(library_ops.LibraryNumbers(np), row, operands, lead, attributes)
        value = {"value": _wrapped(attributes["value"])} if "value" in attributes else {}
        return library_ops.moved(np, row, operands, lead, {**attributes, **value})

    def cast(self, x: Array, dtype: DType) -> Array:
        """As torch does: to integers towards zero, from wider integers without the upper bits."""
        if dtype.is_integer:
            with np.errstate(invalid="ignore"):
                return x.astype(np.int64, copy=False).astype(str(dtype), copy=False)
        return self.plain.cast(x.astype(str(self.working)) if _is_whole(x) else x, dtype)


def _is_whole(x: Array) -> bool:
    return bool(x.dtype.kind in "iu")


def _check_range(op: str, indices: Array, extent: int) -> None:
    """Refuse indices that are none of the elements, which −1 counts from the last."""
    wrong = (indices < -extent) | (indices >= extent)
    if wrong.any():
        raise ProgramError(f"{op}: got the index {int(indices[wrong][0])}, wanted {-extent} to {extent - 1}")


def _wrapped(number: Fraction) -> int:
    """A whole number as one of 64 bits."""
    return (int(number) + 2**63) % 2**64 - 2**63
