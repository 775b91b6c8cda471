"""The semantics of library ops on arrays of numbers, one function each; moves are rows of the op table. Trusted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.convolution import convolved, pooled
from mirage_eg.backends.evaluator.matmul import product
from mirage_eg.ir.ops import Attributes, Op
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


def _cumsum(xp: Any, x: Array, lead: int, attributes: Attributes) -> Array:
    return xp.cumsum(x, axis=lead + attributes["dim"])


def iota(xp: Any, lead: int, attributes: Attributes) -> Array:
    """0, 1, 2, … along the one dim."""
    return xp.arange(attributes["extent"], dtype=np.float64).reshape((1,) * lead + (-1,))


def eye(xp: Any, lead: int, attributes: Attributes) -> Array:
    """The identity matrix."""
    return xp.eye(attributes["extent"], dtype=np.float64)[(np.newaxis,) * lead]


def _full(xp: Any, lead: int, attributes: Attributes) -> Array:
    return xp.full((1,) * lead + attributes["shape"], float(attributes["value"]))


def _conv2d(xp: Any, x: Array, weight: Array, lead: int, attributes: Attributes) -> Array:
    return convolved(xp, x, weight, lead, attributes, lambda a, b: product(xp, a, b, a.dtype))


def _max_pool2d(xp: Any, x: Array, lead: int, attributes: Attributes) -> Array:
    return pooled(xp, x, lead, attributes, xp.maximum, -np.inf)


def _avg_pool2d(xp: Any, x: Array, lead: int, attributes: Attributes) -> Array:
    return pooled(xp, x, lead, attributes, xp.add, 0.0) / window_counts(xp, x.shape[-2:], attributes)


COMPUTED: Mapping[str, Callable[..., Array]] = {
    "cumsum": _cumsum,
    "argsort": places_in_order,
    "iota": iota,
    "full": _full,
    "eye": eye,
    "conv2d": _conv2d,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
}


def numbers(xp: Any, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
    """The result of any library op on numbers."""
    if row.rearrange is not None:
        value = {"value": float(attributes["value"])} if "value" in attributes else {}
        return moved(xp, row, operands, lead, {**attributes, **value})
    return COMPUTED[row.name](xp, *operands, lead, attributes)


__all__ = ["COMPUTED", "eye", "iota", "moved", "numbers", "places_in_order", "whole"]
