"""Convolutions and pooling on arrays of numbers or residues, from the sums and products of the algebra that calls. Trusted.

A convolution is a product of the weights of each group with its patches: the elements of all windows, as columns. Patches are
made for a few rows of the result at a time.
"""

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.ops import Attributes
from mirage_eg.ir.windows import conv2d_shape, framed, pool2d_shape, window_elements

PATCH_ELEMENTS = 1 << 22
"""The number of elements of patches that are in memory together, at least one row of the result."""


def convolved(
    xp: Any, x: Array, weight: Array, lead: int, attributes: Attributes, multiply: Callable[[Array, Array], Array]
) -> Array:
    """The convolution; `multiply` is the product of batches of matrices."""
    shape, kernel = x.shape[lead:], weight.shape[lead:]
    _, outputs, rows, columns = conv2d_shape([shape, kernel], attributes)
    groups, inner = attributes["groups"], prod(kernel[1:])
    weights = weight.reshape(*weight.shape[:lead], 1, groups, outputs // groups, inner)
    x = framed(xp, x, attributes["pads"], 0)
    step = max(1, PATCH_ELEMENTS // (prod(x.shape[: lead + 1]) * groups * inner * columns))
    parts = []
    for start in range(0, rows, step):
        taken = range(start, min(start + step, rows))
        patches = xp.stack([*window_elements(x, kernel[2:], attributes, taken, columns)], axis=-3)
        patches = patches.reshape(*x.shape[: lead + 1], groups, inner, len(taken) * columns)
        part = multiply(weights, patches)
        parts.append(part.reshape(*part.shape[:-3], outputs, len(taken), columns))
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=-2)


def pooled(
    xp: Any, x: Array, lead: int, attributes: Attributes, combine: Callable[[Array, Array], Array], outside: float
) -> Array:
    """The elements of each window combined; `outside` stands for those that do not exist."""
    *_, rows, columns = pool2d_shape([x.shape[lead:]], attributes)
    x = framed(xp, x, attributes["pads"], outside)
    return reduce(combine, window_elements(x, attributes["window"], attributes, range(rows), columns))


__all__ = ["convolved", "pooled"]
