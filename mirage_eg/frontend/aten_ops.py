"""The ATen ops that import knows: one handler for each overload, by its name in FX graphs."""

from collections.abc import Mapping
from dataclasses import replace

from mirage_eg.frontend import (
    aten_convolution,
    aten_elementwise,
    aten_encoder,
    aten_experts,
    aten_fills,
    aten_indicators,
    aten_integers,
    aten_layers,
    aten_library,
    aten_losses,
    aten_pooling,
    aten_quantized,
    aten_rearrangements,
    aten_repeats,
    aten_strided,
    aten_writes,
)
from mirage_eg.frontend.aten_call import Call, Handled, Handler

_TABLES = (
    aten_convolution,
    aten_elementwise,
    aten_encoder,
    aten_experts,
    aten_fills,
    aten_indicators,
    aten_layers,
    aten_library,
    aten_losses,
    aten_pooling,
    aten_quantized,
    aten_rearrangements,
    aten_repeats,
    aten_strided,
    aten_writes,
)
_HANDLERS: dict[str, Handler] = {name: handler for table in _TABLES for name, handler in table.HANDLERS.items()}

_TYPED: Mapping[str, Handler] = _HANDLERS | {
    name: aten_integers.by_type(_HANDLERS.get(name, of_integers), of_integers)
    for name, of_integers in aten_integers.OF_INTEGERS.items()
}


def _converted(call: Call) -> Handled:
    """A cast that names its operand `a`: Inductor's decompositions have it."""
    renamed = {"self": call.take("a"), "dtype": call.take("dtype")}
    return _TYPED["aten._to_copy.default"](replace(call, arguments=renamed, types={"self": call.types["a"]}))


HANDLERS: Mapping[str, Handler] = {**_TYPED, "prims.convert_element_type.default": _converted}

FROM_SHAPES = frozenset(
    f"aten.{name}"
    for name in (
        *("new_ones.default", "new_zeros.default", "new_full.default", "new_empty.default", "zero.default", "fill.Scalar"),
        *("ones_like.default", "zeros_like.default", "full_like.default", "empty_like.default", "fill.Tensor"),
    )
)
"""Ops that read nothing of their operand but its shape and type: constants at import."""
