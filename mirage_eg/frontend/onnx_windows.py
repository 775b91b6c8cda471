"""ONNX's convolutions, pooling and samples at a grid as functions of torch, whose pads are equal on both sides.

Other pads are a call of their own: of zeros, or for maxima windows of stride 1 of which some are taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mirage_eg.frontend.onnx_values import Operator, Tensor, Value
from mirage_eg.ir.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class _Dim:
    """The windows along a dim."""

    extent: int
    reach: int  # of a window, dilation included
    stride: int
    before: int
    after: int

    @property
    def count(self) -> int:
        """The number of windows."""
        return (self.extent + self.before + self.after - self.reach) // self.stride + 1

    def torchs_count(self, ceil_mode: bool) -> int:
        """The number of windows in torch with the pads before on both sides."""
        rest = self.extent + 2 * self.before - self.reach
        count = (-(-rest // self.stride) if ceil_mode else rest // self.stride) + 1
        return count - 1 if ceil_mode and (count - 1) * self.stride >= self.extent + self.before else count


def _dims(
    x: Value, window: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], auto_pad: str
) -> list[_Dim]:
    """The windows along each of the last dims of x."""
    rank = x.ndim - 2
    strides, dilations = list(strides) or [1] * rank, list(dilations) or [1] * rank
    pads = list(pads) or [0] * (2 * rank)
    if min(*strides, *dilations) < 1:
        raise UnsupportedError(f"strides = {strides}, dilations = {dilations}, wanted numbers of at least 1")
    found = []
    for place, extent in enumerate(x.shape[2:]):
        reach = dilations[place] * (window[place] - 1) + 1
        before, after = pads[place], pads[place + rank]
        match auto_pad:
            case "NOTSET":
                pass
            case "VALID":
                before = after = 0
            case "SAME_UPPER" | "SAME_LOWER":
                total = max((-(-extent // strides[place]) - 1) * strides[place] + reach - extent, 0)
                before, after = total // 2, total - total // 2
                before, after = (before, after) if auto_pad == "SAME_UPPER" else (after, before)
            case _:
                raise UnsupportedError(f"auto_pad = {auto_pad!r}, wanted NOTSET, VALID, SAME_UPPER or SAME_LOWER")
        if before < 0 or after < 0:
            raise UnsupportedError(f"pads = {list(pads)}, wanted numbers of at least 0")
        found.append(_Dim(int(extent), reach, strides[place], before, after))
    return found


def _is_even(dims: Sequence[_Dim]) -> bool:
    return all(dim.before == dim.after for dim in dims)


def _framed(x: Value, dims: Sequence[_Dim]) -> Any:
    return torch.nn.functional.pad(x, [width for dim in reversed(dims) for width in (dim.before, dim.after)])


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    _check_kernel_shape(kernel_shape, weight)
    dims = _dims(x, weight.shape[2:], strides, pads, dilations, auto_pad)
    x, padding = (x, [dim.before for dim in dims]) if _is_even(dims) else (_framed(x, dims), [0] * len(dims))
    convolution = getattr(torch.nn.functional, f"conv{len(dims)}d")
    return convolution(x, weight, bias, list(strides) or 1, padding, list(dilations) or 1, group)


def _conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    """Different pads are cut off the result; `output_shape` says how many are cut."""
    rank = x.ndim - 2
    _check_kernel_shape(kernel_shape, weight)
    strides, dilations = list(strides) or [1] * rank, list(dilations) or [1] * rank
    added, pads = list(output_padding) or [0] * rank, list(pads) or [0] * (2 * rank)
    if min(pads) < 0 or auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise UnsupportedError(f"pads = {pads}, auto_pad = {auto_pad!r}, wanted numbers of at least 0, or a known name")
    ends = []  # of the result in the one without pads
    for place, extent in enumerate(x.shape[2:]):
        full = strides[place] * (extent - 1) + added[place] + dilations[place] * (weight.shape[2 + place] - 1) + 1
        before, wanted = pads[place], full - pads[place] - pads[place + rank]
        if auto_pad == "VALID":
            before, wanted = 0, full
        if output_shape:
            wanted = output_shape[len(output_shape) - rank + place]
        elif auto_pad.startswith("SAME"):
            wanted = extent * strides[place]
        if output_shape or auto_pad.startswith("SAME"):
            total = max(full - wanted, 0)
            before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        ends.append((before, before + wanted, full))
    convolution = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    padding = [before for before, *_ in ends]
    fitted = [more + before - (full - end) for more, (before, end, full) in zip(added, ends, strict=True)]
    if all(0 <= more < max(pair) for more, *pair in zip(fitted, strides, dilations, strict=True)):
        return convolution(x, weight, bias, strides, padding, fitted, group, dilations)
    if any(end > full for _, end, full in ends):
        raise UnsupportedError(f"a result of {[end for _, end, _ in ends]} elements, wanted at most {[it for *_, it in ends]}")
    z = convolution(x, weight, bias, strides, 0, added, group, dilations)
    return z[(..., *(slice(before, end) for before, end, _ in ends))]


def _check_kernel_shape(given: Sequence[int], weight: Value) -> None:
    if list(given or weight.shape[2:]) != list(weight.shape[2:]):
        raise UnsupportedError(f"kernel_shape = {list(given)}, wanted that of the weights {list(weight.shape[2:])}")


def _max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    dims = _dims(x, kernel_shape, strides, pads, dilations, auto_pad)
    pool, window = getattr(torch.nn.functional, f"max_pool{len(dims)}d"), list(kernel_shape)
    steps, dilation, before = [dim.stride for dim in dims], list(dilations) or 1, [dim.before for dim in dims]
    if any(2 * max(dim.before, dim.after) > size for dim, size in zip(dims, window, strict=True)):
        raise UnsupportedError(f"pads = {list(pads)}, wanted at most half of the window {window}")
    if _is_even(dims):
        return pool(x, window, steps, before, dilation, bool(ceil_mode))
    if ceil_mode:
        raise UnsupportedError("ceil_mode = 1 with pads that differ on both sides")
    for mode in (False, True):
        if all(dim.torchs_count(mode) == dim.count for dim in dims):
            return pool(x, window, steps, before, dilation, mode)
    widest = [max(dim.before, dim.after) for dim in dims]
    z = pool(x, window, 1, widest, dilation)
    for place, (dim, width) in enumerate(zip(dims, widest, strict=True), 2):
        start = width - dim.before
        z = z[(slice(None),) * place + (slice(start, start + (dim.count - 1) * dim.stride + 1, dim.stride),)]
    return z


def _average_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    if any(dilation != 1 for dilation in dilations):
        raise UnsupportedError(f"dilations = {list(dilations)}, wanted 1: torch's means have none")
    dims = _dims(x, kernel_shape, strides, pads, (), auto_pad)
    pool, window = getattr(torch.nn.functional, f"avg_pool{len(dims)}d"), list(kernel_shape)
    steps = [dim.stride for dim in dims]
    if _is_even(dims) and all(2 * dim.before <= dim.reach for dim in dims):  # torch takes no wider pads
        return pool(x, window, steps, [dim.before for dim in dims], bool(ceil_mode), bool(count_include_pad))
    if ceil_mode:
        raise UnsupportedError("ceil_mode = 1 with pads that differ on both sides, or that are wider than half the window")
    z = pool(_framed(x, dims), window, steps)
    if count_include_pad:
        return z
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    return z / pool(_framed(ones, dims), window, steps)


_MODES = {"linear": "bilinear", "cubic": "bicubic"}  # torch's names


def _grid_sample(x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0) -> Any:
    return torch.nn.functional.grid_sample(x, grid, _MODES.get(mode, mode), padding_mode, bool(align_corners))


OPERATORS: Mapping[str, Operator] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GridSample": _grid_sample,
}
