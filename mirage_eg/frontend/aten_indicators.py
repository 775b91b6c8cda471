"""ATen's comparisons, bool tensors and selections as indicators of a kernel graph."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import inf
from typing import Any

from mirage_eg.frontend.aten_call import FLOATING, Call, Handler, cast, expanded, named
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import UnsupportedError

Operand = Tensor | Fraction


def _comparison(compare: Callable[[KernelGraph, Tensor, Operand], Tensor]) -> Handler:
    return lambda call: compare(call.graph, call.tensor("self"), call.operand("other"))


def _swapped(method: Callable[..., Tensor]) -> Callable[[KernelGraph, Tensor, Operand], Tensor]:
    """y < x, and −x < −y for a number y."""
    return lambda g, x, y: method(g, y, x) if isinstance(y, Tensor) else method(g, -x, -y)


def _number_indicator(call: Call, name: str) -> Tensor:
    """An indicator as zeros and ones of float32 unless it has a floating-point type."""
    x = call.indicator(name)
    return x if x.dtype in FLOATING else cast(x, "float32")


def _of_indicators(method: Callable[..., Tensor]) -> Handler:
    return lambda call: method(call.graph, call.indicator("self"), call.indicator("other"))


def _equal(call: Call) -> Tensor:
    """Of tensors of torch's type bool: 1 where both or none is true."""
    if not call.is_indicator("self"):
        return call.graph.equal(call.tensor("self"), call.operand("other"))
    if call.is_indicator("other"):
        return 1 - _xor(call)
    number = call.take("other")
    if number not in (0, 1):
        raise UnsupportedError(f"other = {number!r}, wanted a bool")
    x = _number_indicator(call, "self")
    return x if number else 1 - x


def truth(call: Call, name: str = "self") -> Tensor:
    """Zeros and ones of a floating-point type: where an operand is true, or a number that is not 0."""
    if call.is_indicator(name):
        return _number_indicator(call, name)
    x = call.any_tensor(name)
    other = 1 - call.graph.equal(x, 0)
    return other if x.dtype in FLOATING else cast(cast(other, "bool"), "float32")


def _is_infinite(call: Call) -> Tensor:
    x = call.tensor("self")
    return call.graph.equal(call.graph.abs(x), call.constant(inf, str(x.dtype)))


def _xor(call: Call) -> Tensor:
    return (_number_indicator(call, "self") - _number_indicator(call, "other")) ** 2


def _selected(call: Call, name: str) -> Tensor:
    """An operand of a selection: a tensor or a number, which may be infinite."""
    value: Any = call.take(name)
    if name in call.types:
        return call.tensor(name)
    if isinstance(value, bool) or value != value:
        raise UnsupportedError(f"{name} = {value!r} is not supported")
    return call.constant(float(value), call.result.dtype)


def _where(call: Call) -> Tensor:
    x, y = _selected(call, "self"), _selected(call, "other")
    return expanded(call.graph.where(call.indicator("condition"), x, y), call.result.shape)


HANDLERS: Mapping[str, Handler] = {
    **named("lt.Tensor lt.Scalar", _comparison(KernelGraph.less)),
    **named("le.Tensor le.Scalar", _comparison(KernelGraph.less_equal)),
    **named("gt.Tensor gt.Scalar", _comparison(_swapped(KernelGraph.less))),
    **named("ge.Tensor ge.Scalar", _comparison(_swapped(KernelGraph.less_equal))),
    **named("eq.Tensor eq.Scalar", _equal),
    **named("ne.Tensor ne.Scalar", lambda call: 1 - _equal(call)),
    **named("logical_and.default bitwise_and.Tensor __and__.Tensor", _of_indicators(KernelGraph.mul)),
    **named("logical_or.default bitwise_or.Tensor __or__.Tensor", _of_indicators(KernelGraph.maximum)),
    **named("logical_xor.default bitwise_xor.Tensor __xor__.Tensor", _xor),
    **named("logical_not.default bitwise_not.default", lambda call: 1 - _number_indicator(call, "self")),
    "aten.isinf.default": _is_infinite,
    "aten.isnan.default": lambda call: 1 - call.graph.equal(call.tensor("self"), call.tensor("self")),
    **named("where.self where.ScalarSelf where.ScalarOther where.Scalar", _where),
    **named(
        "masked_fill.Scalar masked_fill.Tensor",
        lambda call: call.graph.where(call.indicator("mask"), _selected(call, "value"), call.tensor("self")),
    ),
}
