"""ATen's pooling over windows that neither overlap nor reach beyond the edge: a reshape and a reduction."""

from collections.abc import Mapping

from mirage_eg.frontend.aten_call import Call, Handler
from mirage_eg.frontend.aten_rearrangements import cut, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError


def _per_dim(call: Call, name: str, dims: int) -> tuple[int, ...]:
    """An argument with a number for each pooled dim, or one for all."""
    given = call.take(name)
    numbers = [given] if isinstance(given, int) else list(given or ())
    return tuple(numbers * dims if len(numbers) == 1 else numbers)


def _pool(op: str, dims: int) -> Handler:
    def pool(call: Call) -> Tensor:
        x = call.tensor("self")
        call.ignore("ceil_mode", "count_include_pad")  # without padding, they matter for windows beyond the edge
        sizes = _per_dim(call, "kernel_size", dims)
        if (strides := _per_dim(call, "stride", dims) or sizes) != sizes:
            raise UnsupportedError(f"stride = {strides} of windows of {sizes}: they overlap or leave gaps")
        if any(_per_dim(call, "padding", dims)) or any(one != 1 for one in _per_dim(call, "dilation", dims)):
            raise UnsupportedError("pooling with padding or dilation")
        counts = call.result.shape[-dims:]
        for place, (size, count) in enumerate(zip(sizes, counts, strict=True), len(x.shape) - dims):
            if count * size > x.shape[place]:
                raise UnsupportedError("ceil_mode = True: a window reaches beyond the edge")
            x = cut(x, place, 0, count * size)
            x = reshaped(x, (*x.shape[:place], count, size, *x.shape[place + 1 :]))
            x = call.graph.op(op, x, dim=place + 1)
            x = reshaped(x, (*x.shape[: place + 1], *x.shape[place + 2 :]))
        return x

    return pool


def _adaptive_mean(dims: int) -> Handler:
    """Windows of one size, where the extents of the result divide those of the operand."""

    def pool(call: Call) -> Tensor:
        x = call.tensor("self")
        call.ignore("output_size")  # read off the type of the result
        for place in range(len(x.shape) - dims, len(x.shape)):
            count = call.result.shape[place]
            if x.shape[place] % count:
                raise UnsupportedError(f"output_size = {count} does not divide the extent {x.shape[place]}")
            x = reshaped(x, (*x.shape[:place], count, x.shape[place] // count, *x.shape[place + 1 :]))
            x = call.graph.mean(x, place + 1)
            x = reshaped(x, (*x.shape[: place + 1], *x.shape[place + 2 :]))
        return x

    return pool


HANDLERS: Mapping[str, Handler] = {
    **{f"aten.avg_pool{dims}d.default": _pool("mean", dims) for dims in (1, 2, 3)},
    **{f"aten.max_pool{dims}d.default": _pool("max", dims) for dims in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{dims}d.default": _adaptive_mean(dims) for dims in (1, 2, 3)},
}
