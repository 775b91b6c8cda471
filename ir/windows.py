"""The ops that slide a window over the last two dims of images [N, C, H, W]: shape rules, and movement on arrays.

conv2d(x, w)     result[n, o, p, q] = Σ_{c, i, j} x[n, c₀ + c, s·p + d·i − top, t·q + e·j − left] · w[o, c, i, j]
max_pool2d(x)    the maximum of the elements x[n, c, s·p + d·i − top, t·q + e·j − left] that exist
avg_pool2d(x)    their mean; with `count_include_pad` their sum divided by the number of elements of a window

(s, t)   strides        (d, e)   dilations        (top, left, bottom, right)   pads, where x counts as 0 or is left out
groups   the channels of w are those of x divided by it; c₀ is the first channel of the group of output channel o
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.shapes import Attributes, Shape, text
from mirage_eg.ir.sizes import Dim, SizeExpression, parts_of

ONE = (1, 1)


def conv2d_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """[N, C, H, W] and [O, C / groups, kh, kw] → [N, O, H′, W′]."""
    x, weight = operands
    if len(x) != 4 or len(weight) != 4:
        raise GraphError(
            f"got {text(x)} and {text(weight)}; wanted [N, C, H, W] and [O, C / groups, kh, kw] (reshape them first)"
        )
    groups = attributes["groups"]
    if groups < 1 or x[1] % groups or weight[0] % groups or weight[1] * groups != x[1]:
        raise GraphError(
            f"got groups {groups} for {text(x)} and weight {text(weight)}; they must divide {x[1]} input and {weight[0]} "
            f"output channels, and a weight of {weight[1]} · {groups} input channels must fit"
        )
    return (x[0], weight[0], *_extents(x, weight[2:], attributes))


def pool2d_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """[N, C, H, W] → [N, C, H′, W′]; each window has at least one element of x."""
    [x] = operands
    if len(x) != 4:
        raise GraphError(f"got {text(x)}, wanted [N, C, H, W] (reshape it first)")
    window = _numbers(attributes, "window", 2, 1)
    counts = _extents(x, window, attributes)
    if not attributes.get("count_include_pad"):
        for dim, count in enumerate(counts):
            at_border = _windows_at_border(attributes, dim, window[dim], count, x[2 + dim])
            per_window = _elements(attributes, dim, window[dim], at_border, x[2 + dim])
            if 0 in per_window:
                raise GraphError(
                    f"got pads {text(attributes['pads'])} for dim {2 + dim} of {text(x)}: window "
                    f"{at_border[per_window.index(0)]} has no element of it; wanted smaller pads"
                )
    return (*x[:2], *counts)


def _extents(x: Shape, window: Shape, attributes: Attributes) -> Shape:
    """The numbers of windows along the last two dims."""
    strides = _numbers(attributes, "strides", 2, 1)
    dilations = _numbers(attributes, "dilations", 2, 1) if "dilations" in attributes else ONE
    pads = _numbers(attributes, "pads", 4, 0)
    result = []
    for dim, extent in enumerate(x[2:]):
        reach = dilations[dim] * (window[dim] - 1) + 1
        least = (extent.min if isinstance(extent, Dim) else extent) + pads[dim] + pads[dim + 2]
        if reach > least:
            raise GraphError(
                f"got a window of {text(window)} with dilations {text(dilations)} for {text(x)} with pads {text(pads)}; "
                f"it reaches over {reach} of {least} elements of dim {2 + dim}; wanted a smaller window or larger pads"
            )
        firsts = extent + (pads[dim] + pads[dim + 2] - reach + 1)  # where a window may begin
        sized = isinstance(extent, SizeExpression)
        result.append(parts_of(firsts, strides[dim]) if sized else (firsts - 1) // strides[dim] + 1)
    return tuple(result)


def _numbers(attributes: Attributes, name: str, count: int, least: int) -> Shape:
    given: Shape = attributes[name]
    if len(given) != count or any(number < least for number in given):
        order = " (top, left, bottom, right)" if count == 4 else ""
        raise GraphError(f"got {name} {text(given)}, wanted {count} numbers{order} of at least {least}")
    return given


def _windows_at_border(attributes: Attributes, dim: int, window: int, count: int, extent: int) -> list[int]:
    """Those of `count` windows over a dim of `extent` that reach over one of its ends."""
    stride, before = attributes["strides"][dim], attributes["pads"][dim]
    reach = attributes.get("dilations", ONE)[dim] * (window - 1)
    head = min(count, -(-before // stride))
    tail = max(head, (extent + before - reach + stride - 1) // stride)
    return [*range(head), *range(tail, count)]


def _elements(attributes: Attributes, dim: int, window: int, places: Sequence[int], extent: int) -> list[int]:
    """How many elements of a dim of `extent` the windows at these places have."""
    stride, before = attributes["strides"][dim], attributes["pads"][dim]
    dilation = attributes.get("dilations", ONE)[dim]
    firsts = [stride * place - before for place in places]
    return [sum(0 <= first + dilation * i < extent for i in range(window)) for first in firsts]


def window_counts(xp: Any, shape: Shape, attributes: Attributes) -> Any:
    """The number by which avg_pool2d divides the sum of each window of an image [H, W], as an array [H′, W′] or a number."""
    window = attributes["window"]
    if attributes["count_include_pad"]:
        return prod(window)
    counts = _extents((1, 1, *shape), window, attributes)
    rows, columns = (
        xp.asarray(_elements(attributes, dim, window[dim], range(counts[dim]), shape[dim]), dtype=float) for dim in range(2)
    )
    return rows[:, None] * columns


def enlarged_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """[O, C, kh, kw] → [O, C, *window]; odd extents become larger odd ones, so that the centre stays."""
    [x] = operands
    window = _numbers(attributes, "window", 2, 1)
    if len(x) != 4 or any(old % 2 == 0 or new % 2 == 0 or new < old for old, new in zip(x[2:], window, strict=False)):
        raise GraphError(
            f"got window {text(window)} for {text(x)}; wanted a weight [O, C, kh, kw] of odd extents, and odd ones ≥"
        )
    return (*x[:2], *window)


def batch_norm_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The shape of x [N, C, …]; the others are [C]."""
    x, *others = operands
    for shape in others:
        if len(x) < 2 or shape != x[1:2]:
            raise GraphError(f"got {text(shape)} for {text(x)}; wanted one number for each channel, dim 1 of [N, C, …]")
    return x


def full_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The given shape."""
    shape: Shape = attributes["shape"]
    if any(extent < 1 for extent in shape):
        raise GraphError(f"got shape {text(shape)}, wanted extents of at least 1")
    return shape


def eye_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """A square matrix."""
    extent = attributes["extent"]
    if extent < 1:
        raise GraphError(f"got extent {extent}, wanted at least 1")
    return (extent, extent)


def framed(xp: Any, x: Any, pads: Shape, value: float) -> Any:
    """Images with `pads` of a value around their last two dims."""
    if not any(pads):
        return x
    top, left, bottom, right = pads
    result = xp.full((*x.shape[:-2], x.shape[-2] + top + bottom, x.shape[-1] + left + right), value, dtype=x.dtype)
    result[..., top : top + x.shape[-2], left : left + x.shape[-1]] = x
    return result


def window_elements(x: Any, window: Shape, attributes: Attributes, rows: range, columns: int) -> Iterator[Any]:
    """For each place in the window, row by row, the elements there of the windows in `rows`, as an image; x is framed."""
    (s, t), (d, e) = attributes["strides"], attributes.get("dilations", ONE)
    for i, j in product(range(window[0]), range(window[1])):
        top = rows.start * s + i * d
        yield x[..., top : top + (len(rows) - 1) * s + 1 : s, j * e : j * e + (columns - 1) * t + 1 : t]


__all__ = [
    "batch_norm_shape",
    "conv2d_shape",
    "enlarged_shape",
    "eye_shape",
    "framed",
    "full_shape",
    "pool2d_shape",
    "window_counts",
    "window_elements",
]
