"""The ops that slide a window over the last dims of images [N, C, H, W] or [N, C, D, H, W]: shape rules, movement on arrays.

conv(x, w)             result[n, o, p…] = Σ_{c, i…} x[n, c₀ + c, (s·p + d·i − before)…] · w[o, c, i…]
conv_transpose(x, w)   result[n, o₀ + o, (s·p + d·i − before)…] is the sum of all x[n, c, p…] · w[c, o, i…]
max_pool(x)            the maximum of the elements x[n, c, (s·p + d·i − before)…] that exist
avg_pool(x)            their mean; with `count_include_pad` their sum divided by the number of elements of a window

s   strides        d   dilations        before, after   pads, where x counts as 0 or is left out: all before, then all after
groups   the channels of w are those of x divided by it; c₀ is the first channel of the group of output channel o
A transposed convolution cuts its pads off the result, and leaves `output_pads` more of it at the end.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.shapes import Attributes, Shape, row_major, text
from mirage_eg.ir.sizes import Dim, SizeExpression, parts_of

DIMS = (2, 3)
"""Numbers of the dims that windows slide over; one dim is an image of height 1."""
CONVOLUTIONS, TRANSPOSED, MAX_POOLS, AVG_POOLS = (
    tuple(f"{name}{dims}d" for dims in DIMS) for name in ("conv", "conv_transpose", "max_pool", "avg_pool")
)
CONV2D, MAX_POOL2D, AVG_POOL2D = CONVOLUTIONS[0], MAX_POOLS[0], AVG_POOLS[0]
OF_IMAGES = CONV2D, TRANSPOSED[0]


def sides(attributes: Attributes) -> tuple[Shape, Shape]:
    """The pads before and after."""
    pads = attributes["pads"]
    return pads[: len(pads) // 2], pads[len(pads) // 2 :]


def conv_shape(operands: Sequence[Shape], attributes: Attributes, dims: int) -> Shape:
    """[N, C, *E] and [O, C / groups, *window] → [N, O, *E′]."""
    x, weight = _image_and_weight(operands, dims, "[O, C / groups, ")
    groups = attributes["groups"]
    if groups < 1 or x[1] % groups or weight[0] % groups or weight[1] * groups != x[1]:
        raise GraphError(
            f"got groups {groups} for {text(x)} and weight {text(weight)}; they must divide {x[1]} input and {weight[0]} "
            f"output channels, and a weight of {weight[1]} · {groups} input channels must fit"
        )
    return (x[0], weight[0], *_extents(x, weight[2:], attributes))


def conv_transpose_shape(operands: Sequence[Shape], attributes: Attributes, dims: int) -> Shape:
    """[N, C, *E] and [C, O / groups, *window] → [N, O, *E′]."""
    x, weight = _image_and_weight(operands, dims, "[C, O / groups, ")
    groups = attributes["groups"]
    if groups < 1 or x[1] % groups or weight[0] != x[1]:
        raise GraphError(
            f"got groups {groups} for {text(x)} and weight {text(weight)}; they must divide {x[1]} input channels, and the "
            f"weight must have so many"
        )
    strides, dilations = (_numbers(attributes, name, dims, 1) for name in ("strides", "dilations"))
    added = _numbers(attributes, "output_pads", dims, 0)
    if any(more >= max(pair) for more, *pair in zip(added, strides, dilations, strict=True)):
        raise GraphError(
            f"got output_pads {text(added)}, wanted less than a stride of {text(strides)} or a dilation of {text(dilations)}"
        )
    pads, result = _numbers(attributes, "pads", 2 * dims, 0), []
    for dim, extent in enumerate(x[2:]):
        cut = pads[dim] + pads[dim + dims] - dilations[dim] * (weight[2 + dim] - 1) - added[dim] - 1
        least = (_least(extent) - 1) * strides[dim]
        if cut >= least or pads[dim] > least + dilations[dim] * (weight[2 + dim] - 1):
            raise GraphError(
                f"got pads {text(pads)} for dim {2 + dim} of {text(x)}: nothing of it is left; wanted smaller pads"
            )
        result.append((extent - 1) * strides[dim] - cut)
    return (x[0], weight[1] * groups, *result)


def pool_shape(operands: Sequence[Shape], attributes: Attributes, dims: int) -> Shape:
    """[N, C, *E] → [N, C, *E′]; each window has at least one element of x."""
    [x] = operands
    if len(x) != 2 + dims:
        raise GraphError(f"got {text(x)}, wanted {_IMAGES[dims]} (reshape it first)")
    window = _numbers(attributes, "window", dims, 1)
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


_IMAGES = {2: "[N, C, H, W]", 3: "[N, C, D, H, W]"}
_SIDES = {4: " (top, left, bottom, right)", 6: " (front, top, left, back, bottom, right)"}


def _image_and_weight(operands: Sequence[Shape], dims: int, channels: str) -> Sequence[Shape]:
    if any(len(shape) != 2 + dims for shape in operands):
        window = ", ".join(("kd", "kh", "kw")[-dims:])
        raise GraphError(
            f"got {' and '.join(map(text, operands))}; wanted {_IMAGES[dims]} and {channels}{window}] (reshape them first)"
        )
    return operands


def _least(extent: Any) -> int:
    return extent.min if isinstance(extent, Dim) else extent


def _dilations(attributes: Attributes) -> Shape:
    return attributes["dilations"] if "dilations" in attributes else (1,) * len(attributes["strides"])


def _extents(x: Shape, window: Shape, attributes: Attributes) -> Shape:
    """The numbers of windows along the last dims."""
    dims = len(window)
    strides = _numbers(attributes, "strides", dims, 1)
    dilations = _numbers(attributes, "dilations", dims, 1) if "dilations" in attributes else (1,) * dims
    pads = _numbers(attributes, "pads", 2 * dims, 0)
    result = []
    for dim, extent in enumerate(x[2:]):
        reach = dilations[dim] * (window[dim] - 1) + 1
        least = _least(extent) + pads[dim] + pads[dim + dims]
        if reach > least:
            raise GraphError(
                f"got a window of {text(window)} with dilations {text(dilations)} for {text(x)} with pads {text(pads)}; "
                f"it reaches over {reach} of {least} elements of dim {2 + dim}; wanted a smaller window or larger pads"
            )
        firsts = extent + (pads[dim] + pads[dim + dims] - reach + 1)  # where a window may begin
        sized = isinstance(extent, SizeExpression)
        result.append(parts_of(firsts, strides[dim]) if sized else (firsts - 1) // strides[dim] + 1)
    return tuple(result)


def _numbers(attributes: Attributes, name: str, count: int, least: int) -> Shape:
    given: Shape = attributes[name]
    if len(given) != count or any(number < least for number in given):
        order = _SIDES[count] if name == "pads" else ""
        raise GraphError(f"got {name} {text(given)}, wanted {count} numbers{order} of at least {least}")
    return given


def _windows_at_border(attributes: Attributes, dim: int, window: int, count: int, extent: int) -> list[int]:
    """Those of `count` windows over a dim of `extent` that reach over one of its ends."""
    stride, before = attributes["strides"][dim], attributes["pads"][dim]
    reach = _dilations(attributes)[dim] * (window - 1)
    head = min(count, -(-before // stride))
    tail = max(head, (extent + before - reach + stride - 1) // stride)
    return [*range(head), *range(tail, count)]


def _elements(attributes: Attributes, dim: int, window: int, places: Sequence[int], extent: int) -> list[int]:
    """How many elements of a dim of `extent` the windows at these places have."""
    stride, before = attributes["strides"][dim], attributes["pads"][dim]
    dilation = _dilations(attributes)[dim]
    firsts = [stride * place - before for place in places]
    return [sum(0 <= first + dilation * i < extent for i in range(window)) for first in firsts]


def window_counts(xp: Any, shape: Shape, attributes: Attributes) -> Any:
    """The number by which avg_pool divides the sum of each window of an image [*E], as an array [*E′] or a number."""
    window = attributes["window"]
    if attributes["count_include_pad"]:
        return prod(window)
    places = enumerate(map(range, _extents((1, 1, *shape), window, attributes)))
    counts = (_elements(attributes, dim, window[dim], own, shape[dim]) for dim, own in places)
    return reduce(lambda x, y: x[..., None] * y, (xp.asarray(it, dtype=float) for it in counts))


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


def framed(xp: Any, x: Any, attributes: Attributes, value: float) -> Any:
    """Images with pads of a value around them."""
    before, after = sides(attributes)
    if not any(attributes["pads"]):
        return x
    lead, extents = x.shape[: -len(before)], x.shape[-len(before) :]
    widths = (sum(each) for each in zip(before, extents, after, strict=True))
    result = xp.full((*lead, *widths), value, dtype=x.dtype)
    result[(..., *(slice(start, start + extent) for start, extent in zip(before, extents, strict=True)))] = x
    return result


def window_elements(x: Any, window: Shape, attributes: Attributes, rows: range, counts: Shape) -> Iterator[Any]:
    """For each place in the window, in row-major order, the elements there of the windows, as an image; x is framed.

    The windows are those in `rows` along the first dim, and as many as `counts` says along each other one.
    """
    strides, lengths = attributes["strides"], (len(rows), *counts)
    for taps in product(*map(range, window)):
        starts = [tap * dilation for tap, dilation in zip(taps, _dilations(attributes), strict=True)]
        starts[0] += rows.start * strides[0]
        given = zip(starts, lengths, strides, strict=True)
        yield x[(..., *(slice(start, start + (length - 1) * stride + 1, stride) for start, length, stride in given))]


def has_planes(shape: Shape) -> bool:
    """Whether a shape may be that of images or volumes."""
    return len(shape) - 2 in DIMS


def channels_last(shape: Shape) -> Shape:
    """The strides of an image or a volume [N, C, *E] in the order N, *E, C."""
    images, channels, *plane = shape
    first, *strides, _ = row_major((images, *plane, channels))
    return (first, 1, *strides)
