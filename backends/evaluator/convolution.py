"""Convolutions and pooling on arrays of numbers or residues, from the sums and products of the algebra that calls. Trusted.

A convolution is a product of the weights of each group with its patches: the elements of all windows, as columns. Patches are
made for a few rows of the result at a time. A transposed one adds the product of each place in the window with the image.
"""

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.shapes import Attributes
from mirage_eg.ir.windows import conv_shape, framed, pool_shape, sides, window_elements

PATCH_ELEMENTS = 1 << 22
"""The number of elements of patches that are in memory together, at least one row of the result."""


def convolved(
    xp: Any, x: Array, weight: Array, lead: int, attributes: Attributes, multiply: Callable[[Array, Array], Array]
) -> Array:
    """The convolution, or the transposed one; `multiply` is the product of batches of matrices."""
    if "output_pads" in attributes:
        return _transposed(xp, x, weight, lead, attributes, multiply)
    shape, kernel = x.shape[lead:], weight.shape[lead:]
    _, outputs, rows, *counts = conv_shape([shape, kernel], attributes, len(kernel) - 2)
    groups, inner = attributes["groups"], prod(kernel[1:])
    weights = weight.reshape(*weight.shape[:lead], 1, groups, outputs // groups, inner)
    x = framed(xp, x, attributes, 0)
    step = max(1, PATCH_ELEMENTS // (prod(x.shape[: lead + 1]) * groups * inner * prod(counts)))
    parts = []
    for start in range(0, rows, step):
        taken = range(start, min(start + step, rows))
        patches = xp.stack([*window_elements(x, kernel[2:], attributes, taken, tuple(counts))], axis=-1 - len(kernel[2:]))
        patches = patches.reshape(*x.shape[: lead + 1], groups, inner, len(taken) * prod(counts))
        part = multiply(weights, patches)
        parts.append(part.reshape(*part.shape[:-3], outputs, len(taken), *counts))
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=-1 - len(counts))


def _transposed(
    xp: Any, x: Array, weight: Array, lead: int, attributes: Attributes, multiply: Callable[[Array, Array], Array]
) -> Array:
    """The sums of the products; residues are not reduced after the addition."""
    (images, channels, *extents), (_, filters, *window) = x.shape[lead:], weight.shape[lead:]
    groups, added = attributes["groups"], attributes["output_pads"]
    steps = [*zip(extents, window, attributes["strides"], attributes["dilations"], strict=True)]
    whole = [(n - 1) * s + (k - 1) * d + 1 + more for (n, k, s, d), more in zip(steps, added, strict=True)]
    columns = x.reshape(*x.shape[:lead], images, groups, channels // groups, prod(extents))
    weights = weight.reshape(*weight.shape[:lead], 1, groups, channels // groups, filters, *window)
    outer = np.broadcast_shapes(x.shape[:lead], weight.shape[:lead])
    result = xp.zeros((*outer, images, groups, filters, *whole), dtype=np.result_type(x.dtype, weight.dtype))
    for taps in np.ndindex(*window):
        part = multiply(weights[(..., *taps)].swapaxes(-1, -2), columns)
        places = (slice(i * d, i * d + (n - 1) * s + 1, s) for i, (n, _, s, d) in zip(taps, steps, strict=True))
        result[(..., *places)] += part.reshape(*part.shape[:-1], *extents)
    before, after = sides(attributes)
    kept = (slice(low, extent - high) for low, extent, high in zip(before, whole, after, strict=True))
    result = result[(..., *kept)]
    return result.reshape(*outer, images, groups * filters, *result.shape[-len(window) :])


def pooled(
    xp: Any, x: Array, lead: int, attributes: Attributes, combine: Callable[[Array, Array], Array], outside: float
) -> Array:
    """The elements of each window combined; `outside` stands for those that do not exist."""
    window = attributes["window"]
    _, _, rows, *counts = pool_shape([x.shape[lead:]], attributes, len(window))
    x = framed(xp, x, attributes, outside)
    return reduce(combine, window_elements(x, window, attributes, range(rows), tuple(counts)))
