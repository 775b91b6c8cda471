"""ATen's pooling: a reshape and a reduction where windows neither overlap nor reach beyond the edge, else pooling of images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

from mirage_eg.frontend.aten_call import Call, Handler, first_of, reshaped
from mirage_eg.frontend.aten_convolution import per_dim, spread
from mirage_eg.frontend.aten_rearrangements import cut, without
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a call over the last dims; `after` reaches to the end of the last window, which torch may clip."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def clipped(self) -> bool:
        """Whether a window reaches beyond the padding, as with ceil_mode."""
        return any(after > before for before, after in zip(self.before, self.after, strict=True))

    @property
    def tile(self) -> bool:
        """Whether windows of elements of the operand follow each other."""
        return self.strides == self.sizes and not any((*self.before, *self.after)) and set(self.dilations) == {1}


def _windows(call: Call, x: Tensor, dims: int) -> _Windows:
    """`ceil_mode` is read off the number of windows in the result."""
    sizes = per_dim(call, "kernel_size", dims)
    strides = per_dim(call, "stride", dims) or sizes
    before = per_dim(call, "padding", dims) or (0,) * dims
    dilations = (per_dim(call, "dilation", dims) if "dilation" in call.arguments else ()) or (1,) * dims
    after = []
    for place, extent in enumerate(x.shape[-dims:]):
        count = call.result.shape[len(call.result.shape) - dims + place]
        reach = dilations[place] * (sizes[place] - 1) + 1
        needed = (count - 1) * strides[place] + reach - extent - before[place]
        fits = (extent + 2 * before[place] - reach) // strides[place] + 1 == count
        after.append(before[place] if fits else max(needed, 0))
    return _Windows(sizes, strides, before, tuple(after), dilations)


def _tiled(call: Call, x: Tensor, op: str, sizes: Sequence[int]) -> Tensor:
    """Windows that follow each other: each dim is split in two, of which the second is reduced."""
    dims = len(sizes)
    counts = call.result.shape[-dims:]
    for place, (size, count) in enumerate(zip(sizes, counts, strict=True), len(x.shape) - dims):
        x = cut(x, place, 0, count * size)
        x = reshaped(x, (*x.shape[:place], count, size, *x.shape[place + 1 :]))
        x = without(call.graph.op(op, x, dim=place + 1), place + 1)
    return x


def _images(x: Tensor, dims: int) -> Tensor:
    """x as images [N, C, H, W]; of one dim with height 1."""
    lead = x.shape[:-dims] if len(x.shape) == dims + 2 else (1, prod(x.shape[:-dims]))
    return reshaped(x, (*lead, *spread(x.shape[-dims:], 1)))


def _pooled(op: str, images: Tensor, windows: _Windows, **given: Any) -> Tensor:
    """The library op of this name and as many dims on images."""
    sizes, strides = spread(windows.sizes, 1), spread(windows.strides, 1)
    return images.builder.op(f"{op}_pool{len(sizes)}d", images, window=sizes, strides=strides, **given)


def _max_pool(dims: int, call: Call) -> Tensor:
    x = call.tensor("self")
    windows = _windows(call, x, dims)
    if windows.tile:
        return _tiled(call, x, "max", windows.sizes)
    pads = (*spread(windows.before, 0), *spread(windows.after, 0))
    z = _pooled("max", _images(x, dims), windows, pads=pads, dilations=spread(windows.dilations, 1))
    return reshaped(z, call.result.shape)


def _avg_pool(dims: int, call: Call) -> Tensor:
    """Padding that torch counts is a pad of its own where a window reaches beyond it: that part is not counted."""
    x, counted = call.tensor("self"), bool(call.take("count_include_pad"))
    divisor = call.take("divisor_override") if "divisor_override" in call.arguments else None
    windows = _windows(call, x, dims)
    if divisor is None and windows.tile:
        return _tiled(call, x, "mean", windows.sizes)
    images = _images(x, dims)
    before, after = spread(windows.before, 0), spread(windows.after, 0)
    if divisor is None and counted and windows.clipped:
        images = call.graph.pad(images, ((0, 0), (0, 0), *((one, one) for one in before)))
        after, before = tuple(b - a for a, b in zip(before, after, strict=True)), (0,) * len(before)
        counted = False
    z = _pooled("avg", images, windows, pads=(*before, *after), count_include_pad=int(counted or divisor is not None))
    z = z if divisor is None else z * Fraction(prod(windows.sizes), call.whole("divisor_override"))
    return reshaped(z, call.result.shape)


_MOST = 64  # windows of different sizes along a dim


def _adaptive(op: str, dims: int, call: Call) -> Tensor:
    """Window i of n along a dim of extent e is [⌊i·e/n⌋, ⌈(i+1)·e/n⌉)."""
    x = call.tensor("self")
    counts, extents = call.result.shape[-dims:], x.shape[-dims:]
    if all(extent % count == 0 for count, extent in zip(counts, extents, strict=True)):
        return _tiled(call, x, op, [extent // count for count, extent in zip(counts, extents, strict=True)])
    for dim, count in enumerate(counts, len(x.shape) - dims):
        x = _adaptive_along(x, op, dim, count)
    return x


def _adaptive_along(x: Tensor, op: str, dim: int, count: int) -> Tensor:
    extent, g = x.shape[dim], x.builder
    if count % extent == 0:
        return x if count == extent else g.repeat(x, count // extent, dim)
    if count > _MOST:
        raise UnsupportedError(
            f"output_size = {count} of an extent of {extent}, wanted at most {_MOST} windows of several sizes"
        )
    ends = [(place * extent // count, -(-(place + 1) * extent // count)) for place in range(count)]
    kept = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    return g.concat([reshaped(g.op(op, cut(x, dim, *window), dim=dim), kept) for window in ends], dim)


_PLACES = "the places of the maxima of a pooling are no output of the IR's op"

HANDLERS: Mapping[str, Handler] = {
    **{f"aten.avg_pool{dims}d.default": partial(_avg_pool, dims) for dims in (1, 2, 3)},
    **{f"aten.max_pool{dims}d.default": partial(_max_pool, dims) for dims in (1, 2, 3)},
    **{f"aten.max_pool{dims}d_with_indices.default": first_of(partial(_max_pool, dims), _PLACES) for dims in (2, 3)},
    **{f"aten.adaptive_avg_pool{dims}d.default": partial(_adaptive, "mean", dims) for dims in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{dims}d.default": partial(_adaptive, "mean", dims) for dims in (2, 3)},
    **{f"aten.adaptive_max_pool{dims}d.default": first_of(partial(_adaptive, "max", dims), _PLACES) for dims in (1, 2, 3)},
}
