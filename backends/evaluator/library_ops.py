"""The semantics of library ops on arrays of numbers, by their records. Trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.convolution import convolved, pooled
from mirage_eg.backends.evaluator.matmul import product
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes, Shape
from mirage_eg.ir.windows import window_counts


def whole(xp: Any, x: Array) -> Array:
    """Indices as whole numbers; an index that is not finite counts as 0."""
    return x if x.dtype.kind in "iu" else xp.rint(xp.nan_to_num(x, posinf=0.0, neginf=0.0)).astype(np.int64)


def moved(xp: Any, row: Op, arrays: Sequence[Array], lead: int, attributes: Attributes) -> Array:
    """The result of a move, by indices or not."""
    assert row.rearrange is not None
    arrays = [whole(xp, array) if place == row.indices else array for place, array in enumerate(arrays)]
    return row.rearrange(xp, arrays, lead, attributes)


def places_in_order(xp: Any, x: Array, lead: int, attributes: Attributes) -> Array:
    """The places of the elements along a dim in order, as argsort does; of equal elements the first is first.

    Not-a-number is larger than all numbers. The descending order is the ascending one of the elements backwards, backwards.
    """
    axis = lead + attributes["dim"]
    backwards = (slice(None),) * axis + (slice(None, None, -1),)
    key = x[backwards] if attributes["descending"] else x
    order = np.argsort(key, axis=axis, kind="stable") if xp is np else xp.argsort(key, axis=axis)
    if attributes["descending"]:
        order = x.shape[axis] - 1 - order[backwards]
    return order[(slice(None),) * axis + (slice(attributes.get("count")),)]


@dataclass(frozen=True, slots=True)
class LibraryNumbers:
    """The functions of which the records of library ops are made (`ir.op.library`), on numbers."""

    xp: Any

    def constant(self, array: Array, lead: int) -> Array:
        return array.reshape((1,) * lead + array.shape)

    def filled(self, shape: Shape, value: Fraction, lead: int) -> Array:
        return self.xp.full((1,) * lead + shape, float(value))

    def running_sum(self, x: Array, axis: int) -> Array:
        """The sums of the first 1, 2, … elements."""
        return self.xp.cumsum(x, axis=axis)

    def order(self, x: Array, lead: int, attributes: Attributes) -> Array:
        return places_in_order(self.xp, x, lead, attributes)

    def convolved(self, x: Array, weight: Array, lead: int, attributes: Attributes) -> Array:
        return convolved(self.xp, x, weight, lead, attributes, lambda a, b: product(self.xp, a, b, a.dtype))

    def largest_of_windows(self, x: Array, lead: int, attributes: Attributes) -> Array:
        return pooled(self.xp, x, lead, attributes, self.xp.maximum, -np.inf)

    def mean_of_windows(self, x: Array, lead: int, attributes: Attributes) -> Array:
        sums = pooled(self.xp, x, lead, attributes, self.xp.add, 0.0)
        return sums / window_counts(self.xp, x.shape[lead + 2 :], attributes)


def computed(arithmetic: Any, row: Op, operands: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    """The result of a library op that is no move, by the functions of an arithmetic."""
    compute = LIBRARY[row.name].compute
    assert compute is not None
    return compute(arithmetic, *operands, lead, attributes)


def numbers(xp: Any, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
    """The result of any library op on numbers."""
    if row.rearrange is not None:
        value = {"value": float(attributes["value"])} if "value" in attributes else {}
        return moved(xp, row, operands, lead, {**attributes, **value})
    return computed(LibraryNumbers(xp), row, operands, lead, attributes)
