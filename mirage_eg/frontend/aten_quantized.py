"""Ops of quantized models: products of numbers of eight bits with their scales."""

from collections.abc import Mapping

from mirage_eg.frontend.aten_call import Call, Handler, named
from mirage_eg.frontend.aten_rearrangements import cast, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError


def _scaled_product(call: Call) -> Tensor:
    """A product of float8 in float32, times a scale of each operand: of the tensor, of rows or columns, or of blocks."""
    call.ignore("use_fast_accum")  # of less exact sums
    call.require("scale_result", None)
    call.ignore("out_dtype")
    left, right = (cast(call.any_tensor(name), "float32") for name in ("self", "mat2"))
    rows, columns = left.shape[0], right.shape[1]
    scales = [call.tensor(name) for name in ("scale_a", "scale_b")]
    for name, scale, wide in zip(("scale_a", "scale_b"), scales, ((rows, 1), (1, columns)), strict=True):
        if scale.shape not in ((), (1,), (1, 1), wide):
            raise UnsupportedError(f"{name} of shape {list(scale.shape)}, wanted one number or {list(wide)}")
    result = left @ right
    for scale in scales:
        result = result * (scale if len(scale.shape) == 2 else reshaped(scale, (1, 1)))
    bias = call.optional("bias")
    return cast(result if bias is None else result + cast(bias, "float32"), call.result.dtype)


HANDLERS: Mapping[str, Handler] = {
    **named("_scaled_mm.default", _scaled_product),
    **named("_int_mm.default", lambda call: call.any_tensor("self") @ call.any_tensor("mat2")),
}
