"""ATen's ops that read elements several times: tiles, nearest neighbours and overlapping windows."""

from collections.abc import Mapping

from mirage_eg.frontend.aten_call import Call, Handler
from mirage_eg.frontend.aten_rearrangements import cut, permuted, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError


def _repeat_interleave(call: Call) -> Tensor:
    call.ignore("output_size")
    x, times = call.any_tensor("self"), call.whole("repeats")
    if call.take("dim") is None:
        return call.graph.repeat(reshaped(x, (call.result.shape[0] // times,)), times, 0)
    return call.graph.repeat(x, times, call.dim("dim", len(x.shape)))


_SCALES = ("scales_d", "scales_h", "scales_w")


def _nearest(dims: int) -> Handler:
    """`upsample_nearest`: element i of the result is element ⌊i · s⌋ of the operand; each is repeated where 1/s is whole."""

    def upsample(call: Call) -> Tensor:
        import numpy as np

        call.ignore("output_size")  # read off the type of the result
        x = call.any_tensor("input" if "input" in call.arguments else "self")
        scales = call.take("scale_factors") or [
            call.take(name) for name in (_SCALES[-dims:] if dims > 1 else ("scales",)) if name in call.arguments
        ]
        for dim, scale in zip(range(len(x.shape) - dims, len(x.shape)), scales or [None] * dims, strict=True):
            extent, wanted = x.shape[dim], call.result.shape[dim]
            times = wanted // extent
            read = np.floor(np.arange(wanted, dtype=np.float32) * np.float32(1 / max(1, times)))
            if wanted % extent or scale not in (None, times) or (read != np.arange(wanted) // times).any():
                raise UnsupportedError(f"an extent of {extent} becomes {wanted}, wanted each element a whole number of times")
            x = x if times == 1 else call.graph.repeat(x, times, dim)
        return x

    return upsample


def _tile(call: Call) -> Tensor:
    """`Tensor.repeat`: the whole tensor several times along each dim."""
    x, times = call.any_tensor("self"), list(call.take("repeats"))
    x = reshaped(x, (1,) * (len(times) - len(x.shape)) + x.shape)
    for dim, count in enumerate(times):
        if count > 1 and x.shape[dim] == 1:
            x = call.graph.broadcast(x, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
        elif count > 1:
            x = call.graph.concat([x] * count, dim)
    return x


_LONGEST = 64  # slices that windows may become


def _unfold(call: Call) -> Tensor:
    """Windows along a dim; their elements are a new last dim: a reshape of windows that follow each other, else slices."""
    x = call.any_tensor("self")
    dim, size, step = call.dim("dimension", len(x.shape)), call.whole("size"), call.whole("step")
    count = (x.shape[dim] - size) // step + 1
    behind = [one for one in range(len(x.shape) + 1) if one != dim + 1]
    if size == step:
        windows = reshaped(cut(x, dim, 0, count * size), (*x.shape[:dim], count, size, *x.shape[dim + 1 :]))
        return permuted(windows, [*behind, dim + 1])
    if size > _LONGEST:
        raise UnsupportedError(f"size = {size} of windows that overlap or leave gaps, wanted at most {_LONGEST}")
    slices = [cut(x, dim, place, place + (count - 1) * step + 1, step) for place in range(size)]
    return call.graph.concat([reshaped(one, (*one.shape, 1)) for one in slices], len(x.shape))


HANDLERS: Mapping[str, Handler] = {
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.repeat.default": _tile,
    "aten.unfold.default": _unfold,
    **{f"aten.upsample_nearest{dims}d.{overload}": _nearest(dims) for dims in (1, 2, 3) for overload in ("vec", "default")},
}
