"""Numbers of which integers are computed in their own width: they wrap as torch's do, and are exact where floats are not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator import library_ops
from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.ops import OPS, Attributes, Op
from mirage_eg.ir.shapes import Shape

# Of operands in 64 bits; the evaluator casts the result to its type, which wraps. `result_dtypes` has the same ops.
_ELEMENTWISE: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs": np.abs,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "scale": lambda x, factor: x * _wrapped(factor),
    "shift": lambda x, offset: x + _wrapped(offset),
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, _wrapped(low)), _wrapped(high)),
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "fill": lambda x, value: np.full_like(x, _wrapped(value)),
}


@dataclass(frozen=True, slots=True)
class WithIntegers:
    """The numbers of `plain`, which rounds; arrays of integers stay arrays of integers."""

    plain: FloatAlgebra

    @property
    def xp(self) -> Any:
        """The library of the arrays."""
        return self.plain.xp

    @property
    def working(self) -> DType:
        """The type of arithmetic of the other numbers."""
        return self.plain.working

    def shape(self, x: Array) -> Shape:
        """Extents of x."""
        return self.plain.shape(x)

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Attributes) -> Array:
        """In 64 bits where all operands are integers; a condition of `where` is none."""
        if op == "cast":
            return self.cast(operands[0], DType(attributes["dtype"]))
        if not all(map(_is_whole, operands[OPS[op].conditions :])):
            return self.plain.elementwise(op, operands, attributes)
        with np.errstate(all="ignore"):
            if op == "where":
                return np.where(operands[0] != 0, *operands[1:])
            return _ELEMENTWISE[op](*(x.astype(np.int64) for x in operands), **attributes)

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...]) -> Array:
        """Sums in 64 bits."""
        if not _is_whole(x):
            return self.plain.reduce(kind, x, axes)
        if kind == "max":
            return x.max(axis=axes, keepdims=True)
        assert kind == "sum"
        return x.sum(axis=axes, keepdims=True, dtype=np.int64)

    def matmul(self, x: Array, y: Array) -> Array:
        """As `plain` does."""
        return self.plain.matmul(x, y)

    def rearrange(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """As `plain` does."""
        return self.plain.rearrange(row, operands, lead, attributes)

    def library(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """Elements that are integers stay integers; so do indices."""
        data = [x for place, x in enumerate(operands) if place != row.indices]
        if not data or not all(map(_is_whole, data)):
            return self.plain.library(row, operands, lead, attributes)
        if row.rearrange is None:
            return library_ops.computed(library_ops.LibraryNumbers(np), row, operands, lead, attributes)
        value = {"value": _wrapped(attributes["value"])} if "value" in attributes else {}
        return library_ops.moved(np, row, operands, lead, {**attributes, **value})

    def view(self, x: Array, shape: Shape, move: Callable[[Array], Array]) -> Array:
        """As `plain` does."""
        return self.plain.view(x, shape, move)

    def join(self, pieces: Sequence[Array], axis: int) -> Array:
        """As `plain` does."""
        return self.plain.join(pieces, axis)

    def cast(self, x: Array, dtype: DType) -> Array:
        """As torch does: to integers towards zero, from wider integers without the upper bits."""
        if dtype.is_integer:
            with np.errstate(invalid="ignore"):
                return x.astype(np.int64, copy=False).astype(str(dtype), copy=False)
        return self.plain.cast(x.astype(str(self.working)) if _is_whole(x) else x, dtype)


def _is_whole(x: Array) -> bool:
    return bool(x.dtype.kind == "i")


def _wrapped(number: Fraction) -> int:
    """A whole number as one of 64 bits."""
    return (int(number) + 2**63) % 2**64 - 2**63


__all__ = ["WithIntegers"]
