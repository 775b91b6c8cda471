"""The semantics of library ops in the finite field. Trusted.

A move reads component k of what it moves, and component 0 of the indices, which are small whole numbers: it is exact. So is a
cumulative sum. The order of elements is the keyed total order of the maxima in component 0, in all components, so that it is an
unknown permutation that depends on the elements alone.

    k   component: 0, 1, 2 for p, q, r
"""

from collections.abc import Sequence

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.field_semantics import Component, Randomness
from mirage_eg.backends.evaluator.library_ops import iota, moved, places_in_order
from mirage_eg.ir.ops import Attributes, Op


def read_components(row: Op, operands: int, k: int) -> list[int]:
    """The component of each operand that component k of the result reads."""
    return [0 if row.name == "argsort" or place == row.indices else k for place in range(operands)]


def component(
    random: Randomness, row: Op, k: int, operands: Sequence[Component], lead: int, attributes: Attributes
) -> Component:
    """Component k of the result from components of the operands, all of them reduced and in float64."""
    xp, arrays = random.xp, [operand.residues for operand in operands]
    match row.name:
        case "iota":
            trials = (len(random.trials),) if lead else ()
            return Component(xp.broadcast_to(iota(xp, lead, attributes), (*trials, attributes["extent"])))
        case "cumsum":
            undefined = operands[0].undefined
            axis = lead + attributes["dim"]
            sums = random.modulus(k).reduced(xp.cumsum(arrays[0], axis=axis))
            return Component(sums, None if undefined is None else np.logical_or.accumulate(undefined, axis=axis))
        case "argsort":
            [x] = operands
            ranks = random.modulus(0).shuffled(x.residues, *random.order(0, x.residues.ndim))
            places = places_in_order(xp, ranks, lead, attributes).astype(np.float64)
            if xp is not np:  # not-a-number among the elements is in every place
                places += (x.residues * 0).sum(axis=lead + attributes["dim"], keepdims=True)
            return Component(places, _any_along(x.undefined, lead + attributes["dim"], places))
        case _:
            result = moved(xp, row, arrays, lead, attributes)
            if xp is not np:  # an index that is not a number makes every element so, as in `_undefined`
                assert row.indices is not None
                result = result + (arrays[row.indices] * 0).sum()
            return Component(result, _undefined(row, operands, lead, attributes))


def _undefined(row: Op, operands: Sequence[Component], lead: int, attributes: Attributes) -> Array | None:
    """The mask of a move: masks move as what they belong to; an undefined index makes all elements undefined."""
    if all(operand.undefined is None for operand in operands):
        return None
    masks = [
        operand.residues
        if place == row.indices
        else np.zeros(operand.residues.shape, bool)
        if operand.undefined is None
        else operand.undefined
        for place, operand in enumerate(operands)
    ]
    mask: Array = moved(np, row, masks, lead, attributes)
    assert row.indices is not None
    unknown = operands[row.indices].undefined
    return mask if unknown is None or not unknown.any() else np.ones_like(mask)


def _any_along(undefined: Array | None, axis: int, like: Array) -> Array | None:
    return None if undefined is None else np.broadcast_to(undefined.any(axis=axis, keepdims=True), like.shape)


__all__ = ["component", "read_components"]
