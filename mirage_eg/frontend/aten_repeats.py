"""ATen's ops that read elements several times: tiles and nearest neighbours."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from mirage_eg.frontend.aten_call import Call, Handler, reshaped
from mirage_eg.frontend.aten_rearrangements import at_places
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError


def _repeat_interleave(call: Call) -> Tensor:
    x, times = call.any_tensor("self"), call.whole("repeats")
    if call.take("dim") is None:
        return call.graph.repeat(reshaped(x, (call.result.shape[0] // times,)), times, 0)
    return call.graph.repeat(x, times, call.dim("dim", len(x.shape)))


_SCALES = ("scales_d", "scales_h", "scales_w")


def _nearest(dims: int, call: Call) -> Tensor:
    """`upsample_nearest`: element i of the result is element ⌊i · s⌋ of the operand, with s in float32."""
    x = call.any_tensor("input" if "input" in call.arguments else "self")
    scales = call.take("scale_factors") or [
        call.take(name) for name in (_SCALES[-dims:] if dims > 1 else ("scales",)) if name in call.arguments
    ]
    for dim, scale in zip(range(len(x.shape) - dims, len(x.shape)), scales or [None] * dims, strict=True):
        extent, wanted = x.shape[dim], call.result.shape[dim]
        step = np.float32(1 / scale) if scale else np.float32(extent) / np.float32(wanted)
        read = np.floor(np.arange(wanted, dtype=np.float32) * step).astype(np.int64).clip(max=extent - 1)
        times = wanted // extent
        if {type(extent), type(wanted)} != {int}:
            raise UnsupportedError(f"an extent of {extent} becomes {wanted}, wanted numbers")
        if wanted % extent or (read != np.arange(wanted) // times).any():
            if wanted == 2 * extent:
                raise UnsupportedError(f"an extent of {extent} becomes {wanted} by a scale of {scale}: kernels of torch differ")
            x = at_places(call, x, [read], dim)
        elif times > 1:
            x = call.graph.repeat(x, times, dim)
    return x


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


HANDLERS: Mapping[str, Handler] = {
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.repeat.default": _tile,
    **{
        f"aten.upsample_nearest{dims}d.{overload}": partial(_nearest, dims)
        for dims in (1, 2, 3)
        for overload in ("vec", "default")
    },
}
