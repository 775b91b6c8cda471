"""The semantics of library ops in the finite field. Trusted.

A move reads component k of what it moves, and component 0 of the indices, which are small whole numbers: it is exact. So are
cumulative sums, convolutions, means over windows and constants. The order of elements is the keyed total order of the maxima in
component 0, in all components, so that it is an unknown permutation that depends on the elements alone. Maxima over windows are
those of the order of their component.

*Everywhere.* An index i is the vector e_i in gather(x, i) = Σ_r (e_i)_r x_r, and a write adds Σ_j (e_j)_r (v_j − x_r) to row r.
With `Randomness.everywhere` it is e_i + u(i) w, with w a random vector over all places and u a keyed random function. Graphs
that agree for random u and w agree for all of them (they are polynomials in u and w), so also where one index is any other.

    k   component: 0, 1, 2 for p, q, r
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.convolution import convolved, pooled
from mirage_eg.backends.evaluator.field_semantics import Component, Randomness, affine, mask_of, rational
from mirage_eg.backends.evaluator.library_ops import moved, places_in_order
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes, Shape
from mirage_eg.ir.windows import window_counts


def is_keyed(row: Op) -> bool:
    """Whether a library op satisfies other laws here than on numbers."""
    op = LIBRARY.get(row.name)
    return op is not None and op.keyed


def read_components(row: Op, operands: int, k: int) -> list[int]:
    """The component of each operand that component k of the result reads."""
    op = LIBRARY.get(row.name)
    orders = op is not None and op.orders
    return [0 if orders or place == row.indices else k for place in range(operands)]


def component(
    random: Randomness, row: Op, k: int, operands: Sequence[Component], lead: int, attributes: Attributes
) -> Component:
    """Component k of the result from components of the operands, all of them reduced and in float64."""
    op = LIBRARY.get(row.name)
    if op is not None and op.compute is not None:
        result: Component = op.compute(LibraryField(random, k), *operands, lead, attributes)
        return result
    if "value" in attributes:
        return _padded(random, row, k, operands[0], lead, attributes)
    xp, arrays = random.xp, [operand.residues for operand in operands]
    moves = moved(xp, row, arrays, lead, attributes)
    if random.everywhere and row.indices is not None:
        moves = _everywhere(random, row, k, operands, moves, lead, attributes["dim"])
    if xp is not np and row.indices is not None:  # one that is no number makes every element so, as in `_undefined`
        moves = moves + (arrays[row.indices] * 0).sum()
    return Component(moves, _undefined(row, operands, lead, attributes))


@dataclass(frozen=True, slots=True)
class LibraryField:
    """The functions of which the records of library ops are made (`ir.op.library`), for component k of an op."""

    random: Randomness
    k: int

    @property
    def xp(self) -> Any:
        return self.random.xp

    def _stacked(self, shape: Shape, lead: int) -> Shape:
        return (*[len(self.random.trials)] * bool(lead), *shape)

    def constant(self, array: Array, lead: int) -> Component:
        """A constant, the same in each trial."""
        return Component(self.xp.broadcast_to(array, self._stacked(array.shape, lead)))

    def filled(self, shape: Shape, value: Fraction, lead: int) -> Component:
        zeros = Component(self.xp.zeros(self._stacked(shape, lead)))
        return affine(self.random.modulus(self.k), zeros, Fraction(0), value)

    def running_sum(self, x: Component, axis: int) -> Component:
        """Exact; undefined from the first undefined element on."""
        sums = self.random.modulus(self.k).reduced(self.xp.cumsum(x.residues, axis=axis))
        return Component(sums, None if x.undefined is None else np.logical_or.accumulate(x.undefined, axis=axis))

    def order(self, x: Component, lead: int, attributes: Attributes) -> Component:
        """The places in the keyed order of the first component."""
        axis = lead + attributes["dim"]
        ranks = self.random.modulus(0).shuffled(x.residues, *self.random.order(0, x.residues.ndim))
        places = places_in_order(self.xp, ranks, lead, attributes).astype(np.float64)
        if self.xp is not np:  # not-a-number among the elements is in every place
            places += (x.residues * 0).sum(axis=axis, keepdims=True)
        return Component(places, _any_along(x.undefined, axis, places))

    def convolved(self, x: Component, weight: Component, lead: int, attributes: Attributes) -> Component:
        """Undefined where an element of the window or of the weight that is multiplied is."""
        modulus = self.random.modulus(self.k)
        result = convolved(self.xp, x.residues, weight.residues, lead, attributes, modulus.matmul)
        result = modulus.reduced(result) if "output_pads" in attributes else result
        if x.undefined is None and weight.undefined is None:
            return Component(result)
        masks = [mask_of(x).astype(np.float64), mask_of(weight).astype(np.float64)]
        ones = [np.ones_like(mask) for mask in masks]
        counts = [convolved(np, *pair, lead, attributes, np.matmul) for pair in ((masks[0], ones[1]), (ones[0], masks[1]))]
        return Component(result, (counts[0] + counts[1]) > 0)

    def largest_of_windows(self, x: Component, lead: int, attributes: Attributes) -> Component:
        """In the keyed order of the maxima; with `joins` a keyed product."""
        xp, modulus, rank = self.xp, self.random.modulus(self.k), x.residues.ndim
        ranks = modulus.shuffled(x.residues, *self.random.order(self.k, rank))
        if self.random.joins:
            ranks = pooled(xp, ranks, lead, attributes, xp.add, 0.0) % (modulus.prime - 1)
        else:
            ranks = pooled(xp, ranks, lead, attributes, xp.maximum, -1.0)
        largest = modulus.unshuffled(ranks, *self.random.inverse_order(self.k, rank))
        return Component(largest, _any_in_window(x, lead, attributes))

    def mean_of_windows(self, x: Component, lead: int, attributes: Attributes) -> Component:
        """Exact."""
        xp, modulus = self.xp, self.random.modulus(self.k)
        sums = modulus.reduced(pooled(xp, x.residues, lead, attributes, xp.add, 0.0) + 0.0)
        counts = xp.asarray(window_counts(xp, x.residues.shape[lead + 2 :], attributes), dtype=np.float64)
        shares = modulus.inverse(xp.broadcast_to(counts, sums.shape[lead + 2 :]) + 0.0)
        return Component(modulus.multiply(sums, shares), _any_in_window(x, lead, attributes))


def _everywhere(
    random: Randomness, row: Op, k: int, operands: Sequence[Component], result: Array, lead: int, dim: int
) -> Array:
    """The result of a move by indices, each of which stands for a combination of all places; undefined elements count as 0.

    A read adds u · Σ_r w_r x_r, and a write adds w_r · (Σ_j u_j v_j − x_r · Σ_j u_j) to row r.
    """
    xp, modulus, indices = random.xp, random.modulus(k), operands[1].residues
    x, *values = [_known(xp, operand) for place, operand in enumerate(operands) if place != row.indices]
    before, extent, after = x.shape[lead : lead + dim], x.shape[lead + dim], x.shape[lead + dim + 1 :]
    u = random.keyed(indices, k, "share of all places", of=0)
    w = random.keyed(xp.arange(extent, dtype=np.float64).reshape(*[1] * (lead + 1), extent), k, "place")
    if not indices.ndim == x.ndim == (values[0] if values else result).ndim:  # not in step: one index moves a whole slice
        u = u.reshape(*u.shape[:lead], *[1] * len(before), *u.shape[lead:], *[1] * len(after))
    if not values:
        rows = x.reshape(*x.shape[:lead], prod(before), extent, prod(after))
        combined = modulus.matmul(w.reshape(*w.shape[:lead], 1, 1, extent), rows)
        ones = [1] * (u.ndim - lead - len(before) - len(after))
        return modulus.add(result, modulus.multiply(u, combined.reshape(*x.shape[:lead], *before, *ones, *after)))
    axes, w = (-1 - len(after),), w.reshape(*w.shape[:lead], *[1] * len(before), extent, *[1] * len(after))
    rest = modulus.subtract(modulus.total(modulus.multiply(u, values[0]), axes), modulus.multiply(modulus.total(u, axes), x))
    return modulus.add(result, modulus.multiply(w, rest))


def _known(xp: Any, x: Component) -> Array:
    """Residues, 0 where undefined."""
    if xp is not np:
        return xp.nan_to_num(x.residues)
    return x.residues if x.undefined is None else np.where(x.undefined, 0.0, x.residues)


def _undefined(row: Op, operands: Sequence[Component], lead: int, attributes: Attributes) -> Array | None:
    """The mask of a move: masks move as what they belong to; an undefined index makes all elements undefined."""
    if all(operand.undefined is None for operand in operands):
        return None
    masks = [operand.residues if place == row.indices else mask_of(operand) for place, operand in enumerate(operands)]
    mask: Array = moved(np, row, masks, lead, attributes)
    if row.indices is None:
        return mask
    unknown = operands[row.indices].undefined
    return mask if unknown is None or not unknown.any() else np.ones_like(mask)


def _padded(random: Randomness, row: Op, k: int, x: Component, lead: int, attributes: Attributes) -> Component:
    """Undefined where the prime divides the denominator of the value."""
    value = rational(attributes["value"], random.modulus(k).prime)
    mask = None if x.undefined is None and value is not None else mask_of(x)
    fill = {**attributes, "value": np.nan if value is None and random.xp is not np else float(value or 0)}
    residues = moved(random.xp, row, [x.residues], lead, fill)
    if mask is None or random.xp is not np:
        return Component(residues)
    return Component(residues, moved(np, row, [mask], lead, {**attributes, "value": value is None}))


def _any_in_window(x: Component, lead: int, attributes: Attributes) -> Array | None:
    return None if x.undefined is None else pooled(np, x.undefined, lead, attributes, np.logical_or, 0.0)


def _any_along(undefined: Array | None, axis: int, like: Array) -> Array | None:
    return None if undefined is None else np.broadcast_to(undefined.any(axis=axis, keepdims=True), like.shape)
