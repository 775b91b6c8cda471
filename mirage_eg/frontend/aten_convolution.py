"""ATen's convolutions and transposed ones over one, two or three dims; one dim is an image of height 1."""

from collections.abc import Mapping

from mirage_eg.frontend.aten_call import Call, Handler, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError


def per_dim(call: Call, name: str, dims: int) -> tuple[int, ...]:
    """An argument with a number for each of the last dims, or one for all; () if it is absent or empty."""
    given = call.take(name)
    numbers = [given] if isinstance(given, int) else list(given or ())
    if not all(type(number) is int for number in numbers) or len(numbers) not in (0, 1, dims):
        raise UnsupportedError(f"{name} = {given!r}, wanted {dims} numbers that are known at import")
    return tuple(numbers * dims if len(numbers) == 1 else numbers)


def as_images(x: Tensor, dims: int) -> Tensor:
    """A batch of images: [N, C, L] becomes [N, C, 1, L], and what has no batch dim gets one of extent 1."""
    shape = x.shape if len(x.shape) == dims + 2 else (1, *x.shape)
    if len(shape) != dims + 2:
        raise UnsupportedError(f"got {len(x.shape)} dims, wanted {dims + 1} or {dims + 2}")
    return reshaped(x, (*shape[:2], *spread(shape[2:], 1)))


def _same(extent: int, dilation: int, strides: int) -> tuple[int, int]:
    """The pads with which torch keeps an extent: one more behind where they cannot be equal."""
    if strides != 1:
        raise UnsupportedError(f"padding = 'same' with stride {strides}")
    total = dilation * (extent - 1)
    return total // 2, total - total // 2


def _convolution(call: Call) -> Tensor:
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.optional("bias")
    dims = len(weight.shape) - 2
    call.ignore("transposed")
    transposed = "output_padding" in call.arguments and call.arguments.get("transposed", True)
    strides, dilations = per_dim(call, "stride", dims), per_dim(call, "dilation", dims)
    match call.arguments.get("padding"):
        case "same":
            call.take("padding")
            pads = [_same(*each) for each in zip(weight.shape[2:], dilations, strides, strict=True)]
        case "valid":
            call.take("padding")
            pads = [(0, 0)] * dims
        case _:
            pads = [(one, one) for one in per_dim(call, "padding", dims)]
    before, after = zip(*pads, strict=True)
    given = {"strides": spread(strides, 1), "pads": (*spread(before, 0), *spread(after, 0)), "dilations": spread(dilations, 1)}
    if transposed:
        given["output_pads"] = spread(per_dim(call, "output_padding", dims), 0)
    else:
        call.ignore("output_padding")
    op = f"{'conv_transpose' if transposed else 'conv'}{max(dims, 2)}d"
    z = call.graph.op(op, as_images(x, dims), as_images(weight, dims), **given, groups=call.whole("groups"))
    z = z if bias is None else z + reshaped(bias, (*bias.shape, *[1] * max(dims, 2)))
    return reshaped(z, call.result.shape)


def spread(numbers: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Numbers of the dims of an image, whose height has the number `first` where one dim is given."""
    return numbers if len(numbers) > 1 else (first, *numbers)


HANDLERS: Mapping[str, Handler] = {
    "aten.convolution.default": _convolution,
    **{f"aten.conv{dims}d.{overload}": _convolution for dims in (1, 2, 3) for overload in ("default", "padding")},
    **{f"aten.conv_transpose{name}": _convolution for name in ("1d.default", "2d.input", "3d.input")},
}
