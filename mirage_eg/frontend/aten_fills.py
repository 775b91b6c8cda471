"""ATen's ops that fill a tensor with one number, or with 0, 1, …: here its extents depend on sizes, so it is no constant."""

from collections.abc import Mapping
from functools import partial

from mirage_eg.frontend.aten_call import Call, Handler, cast, named
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.sizes import Dim, SizeExpression


def _filled(value: int | None, call: Call) -> Tensor:
    """A tensor of one number, `fill_value` where None is given; zeros, too, where torch leaves the elements open."""
    call.ignore("self", "size")
    number = call.constant(call.take("fill_value") if value is None else value, call.result.dtype)
    return call.graph.broadcast(number, call.result.shape) if call.result.shape else number


def _places(call: Call) -> Tensor:
    """0, 1, … below a multiple of a size: torch computes what an input can be."""
    call.require("start", None, 0)
    call.require("step", None, 1)
    call.ignore("end")
    [extent] = call.result.shape
    if isinstance(extent, Dim) or not isinstance(extent, SizeExpression):
        raise UnsupportedError(f"{extent} numbers, wanted a multiple of a size")
    return cast(call.graph.iota(extent), call.result.dtype)


HANDLERS: Mapping[str, Handler] = {
    **named("arange.default arange.start arange.start_step", _places),
    **named("empty_like.default new_empty.default zeros_like.default new_zeros.default", partial(_filled, 0)),
    **named("ones_like.default new_ones.default", partial(_filled, 1)),
    **named("full_like.default new_full.default", partial(_filled, None)),
}
