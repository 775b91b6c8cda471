"""ATen's arithmetic, comparisons, choices and casts of integers: each is exact, and a kernel of its own."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from mirage_eg.frontend.aten_call import FLOAT8, FLOATING, Call, Handler, cast, expanded, named, reduction
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.integer_ranges import wrapped_number
from mirage_eg.ir.op.elementwise import PACKAGED

INTEGERS = tuple(str(dtype) for dtype in DType if dtype.is_integer)
Operand = Tensor | Fraction


def has_integers(call: Call) -> bool:
    """Whether an operand or the result is of integers."""
    return any(kind.dtype in INTEGERS for kind in (*call.types.values(), call.result))


def _constant(call: Call, value: Fraction, dtype: str) -> Tensor:
    return call.constant(wrapped_number(int(value), DType(dtype)) if dtype in INTEGERS else float(value), dtype)


def _operand(call: Call, name: str, dtype: str) -> Operand:
    """A number, or a tensor in an element type to which torch converts it without a rounding to whole numbers."""
    if name not in call.types:
        value = call.number(name)
        if dtype in INTEGERS and value.denominator != 1:
            raise UnsupportedError(f"{name} = {float(value)} among integers, wanted a whole number")
        return value
    source, x = call.types[name].dtype, call.any_tensor(name)
    if source == dtype or x.dtype == dtype:
        return x
    if dtype in INTEGERS and source in (*FLOATING, *FLOAT8) and f"to_{dtype}" not in PACKAGED:
        raise UnsupportedError(f"{name} has element type {source}, wanted one that is {dtype} without rounding")
    if dtype in INTEGERS and source == "bool" and x.dtype in FLOATING:  # an indicator of zeros and ones
        return call.graph.where(x, _constant(call, Fraction(1), dtype), _constant(call, Fraction(0), dtype))
    return cast(x, dtype)


def _tensor(call: Call, name: str, dtype: str) -> Tensor:
    value = _operand(call, name, dtype)
    return value if isinstance(value, Tensor) else _constant(call, value, dtype)


def _common(call: Call) -> str:
    """The type in which torch compares two operands: that of floats if there are some, else one that holds all integers.

    A tensor without dims has the type of one with dims.
    """
    floats = [kind.dtype for kind in call.types.values() if kind.dtype in FLOATING]
    if floats:
        return floats[0]
    integers = [kind for kind in call.types.values() if kind.dtype in INTEGERS]
    found = {DType(kind.dtype) for kind in [kind for kind in integers if kind.shape] or integers}
    if found == {DType.int8, DType.uint8}:
        return DType.int16
    return max(found, key=lambda dtype: dtype.itemsize, default=DType.int64)


def _compared(
    indicator: Callable[[KernelGraph, Tensor, Tensor], Tensor], call: Call, is_swapped: bool = False, is_denied: bool = False
) -> Tensor:
    common = _common(call)
    operands = [_tensor(call, "self", common), _tensor(call, "other", common)]
    result = indicator(call.graph, *(reversed(operands) if is_swapped else operands))
    result = expanded(result, call.result.shape)
    result = 1 - result if is_denied else result
    return cast(result, "bool") if common in INTEGERS else result


def _arithmetic(compute: Callable[[KernelGraph, Tensor, Tensor], Tensor], call: Call) -> Tensor:
    dtype = call.result.dtype
    if dtype == "bool":
        raise UnsupportedError("arithmetic of bool")
    x, y = _tensor(call, "self", dtype), _tensor(call, "other", dtype)
    factor = call.number("alpha") if "alpha" in call.defaults or "alpha" in call.arguments else Fraction(1)
    if factor.denominator != 1:
        raise UnsupportedError(f"alpha = {float(factor)} among integers, wanted a whole number")
    return compute(call.graph, x, y if factor == 1 else y * factor)


def _divided(call: Call) -> Tensor:
    if (mode := call.take("rounding_mode")) is not None:
        return _whole_quotient(call, mode, is_rest=False)
    return _tensor(call, "self", call.result.dtype) / _tensor(call, "other", call.result.dtype)


def _clamped(call: Call) -> Tensor:
    x, g, dtype = _tensor(call, "self", call.result.dtype), call.graph, call.result.dtype
    low, high = (None if call.take(name) is None else _tensor(call, name, dtype) for name in ("min", "max"))
    x = x if low is None else g.maximum(x, low)
    return x if high is None else g.minimum(x, high)


def _chosen(condition: str, yes: str, no: str, call: Call) -> Tensor:
    operands = (_tensor(call, name, call.result.dtype) for name in (yes, no))
    return expanded(call.graph.where(call.indicator(condition), *operands), call.result.shape)


def _cast(call: Call) -> Tensor:
    call.ignore("other")  # has the type of the result
    if call.result.dtype == "bool":
        x = call.any_tensor("self")
        return cast(1 - call.graph.equal(x, 0), "bool")
    return _in_result_type(call)


def _in_result_type(call: Call) -> Tensor:
    return _tensor(call, "self", call.result.dtype)


def _opposite(x: Tensor) -> Tensor:
    """−1 − x, which wraps no number."""
    return x * -1 - 1


def _is_one_number(array: Any) -> bool:
    return array is not None and len({*array.ravel().tolist()}) == 1


def _known(call: Call, name: str) -> int:
    """A whole number that is known at import, or the one number of a constant tensor."""
    if name not in call.types:
        return call.whole(name)
    array = call.known_array(name)
    if not _is_one_number(array):
        raise UnsupportedError(f"{name} is a tensor, wanted one whole number that is known at import")
    return int(array.ravel()[0])


def _shifted_right(call: Call) -> Tensor:
    if "other" in call.types and not _is_one_number(call.known_array("other")):
        x, places = (_tensor(call, name, call.result.dtype) for name in ("self", "other"))
        return expanded(x >> places, call.result.shape)
    bits, x = _known(call, "other"), _tensor(call, "self", call.result.dtype)
    if not 0 <= bits < 8 * DType(x.dtype).itemsize:
        raise UnsupportedError(f"other = {bits}, wanted fewer bits than {x.dtype} has")
    return x >> bits if bits else x


def _shifted_left(call: Call) -> Tensor:
    bits = _known(call, "other")
    if not 0 <= bits < 8 * DType(call.result.dtype).itemsize - 1:
        raise UnsupportedError(f"other = {bits}, wanted fewer bits than {call.result.dtype} has")
    return _tensor(call, "self", call.result.dtype) * (1 << bits)


def _bits_of(x: Tensor, mask: int) -> Tensor:
    """x & mask: for each run of ones the low bits up to its end, without those up to its start."""
    if mask < 0:
        return x - _bits_of(x, ~mask)
    found: Tensor | None = None
    done = 0
    while mask >> done:
        done += ((mask >> done) & -(mask >> done)).bit_length() - 1  # the zeros before a run
        start, run = done, mask >> done
        done += (~run & (run + 1)).bit_length() - 1
        low = x.builder.low_bits(x, done)
        low = low - x.builder.low_bits(x, start) if start else low
        found = low if found is None else found + low
    return x * 0 if found is None else found


def _of_bits(op: str, by_mask: Callable[[Tensor, Tensor, int], Tensor], call: Call) -> Tensor:
    """`op` of two tensors; of a mask that is known at import a function of x, x & mask and the mask: sums wrap alike."""
    x = _tensor(call, "self", call.result.dtype)
    if "other" in call.types and not _is_one_number(call.known_array("other")):
        return call.graph.op(op, x, _tensor(call, "other", call.result.dtype))
    mask = _known(call, "other")
    return by_mask(x, _bits_of(x, mask), mask)


def _whole_quotient(call: Call, mode: str, is_rest: bool) -> Tensor:
    """The quotient by a number above 0, rounded down (`floor`) or towards 0 (`trunc`), or the remainder."""
    number, dtype = _known(call, "other"), call.result.dtype
    if dtype not in INTEGERS or (divisor := wrapped_number(number, DType(dtype))) <= 0:
        raise UnsupportedError(f"a division of {dtype} by {number}, wanted integers and a number above 0")
    x = _tensor(call, "self", dtype)
    up = x if mode == "floor" else call.graph.where(cast(call.graph.op("less", x, x * 0), "bool"), x + (divisor - 1), x)
    quotient = up // divisor if divisor > 1 else x
    return x - quotient * divisor if is_rest else quotient


_BY_MASK: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "and": lambda x, common, mask: common,
    "or": lambda x, common, mask: x + mask - common,
    "xor": lambda x, common, mask: x + mask - common * 2,
}
OF_INTEGERS: Mapping[str, Handler] = {
    **named("lt.Tensor lt.Scalar", partial(_compared, KernelGraph.less)),
    **named("le.Tensor le.Scalar", partial(_compared, KernelGraph.less_equal)),
    **named("gt.Tensor gt.Scalar", partial(_compared, KernelGraph.less, is_swapped=True)),
    **named("ge.Tensor ge.Scalar", partial(_compared, KernelGraph.less_equal, is_swapped=True)),
    **named("eq.Tensor eq.Scalar", partial(_compared, KernelGraph.equal)),
    **named("ne.Tensor ne.Scalar", partial(_compared, KernelGraph.equal, is_denied=True)),
    **named("add.Tensor add.Scalar", partial(_arithmetic, lambda g, x, y: x + y)),
    **named("sub.Tensor sub.Scalar", partial(_arithmetic, lambda g, x, y: x - y)),
    **named("rsub.Tensor rsub.Scalar", partial(_arithmetic, lambda g, x, y: y - x)),
    **named("mul.Tensor mul.Scalar", partial(_arithmetic, lambda g, x, y: x * y)),
    **named("maximum.default max.other", partial(_arithmetic, KernelGraph.maximum)),
    **named("minimum.default min.other", partial(_arithmetic, KernelGraph.minimum)),
    **named("div.Tensor div.Scalar div.Tensor_mode", _divided),
    **named("neg.default", lambda call: call.any_tensor("self") * -1),
    **named("abs.default", lambda call: call.graph.abs(call.any_tensor("self"))),
    **named("clamp.default clamp.Tensor clamp_min.default clamp_max.default", _clamped),
    **named("bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Tensor __rshift__.Scalar __rshift__.Tensor", _shifted_right),
    **named("bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Tensor __lshift__.Scalar __lshift__.Tensor", _shifted_left),
    **{
        call: handler
        for name, by_mask in _BY_MASK.items()
        for call, handler in named(
            f"bitwise_{name}.Scalar bitwise_{name}.Tensor __{name}__.Scalar __{name}__.Tensor",
            partial(_of_bits, f"bitwise_{name}", by_mask),
        ).items()
    },
    **named("bitwise_not.default", lambda call: _opposite(call.any_tensor("self"))),
    **named("remainder.Scalar remainder.Tensor", lambda call: _whole_quotient(call, "floor", is_rest=True)),
    **named("fmod.Scalar fmod.Tensor", lambda call: _whole_quotient(call, "trunc", is_rest=True)),
    **named("where.self where.ScalarSelf where.ScalarOther where.Scalar", partial(_chosen, "condition", "self", "other")),
    **named("masked_fill.Scalar masked_fill.Tensor", partial(_chosen, "mask", "value", "self")),
    **named("to.device to.dtype to.dtype_layout to.other _to_copy.default type_as.default", _cast),
    **named("sum.default sum.dim_IntList", partial(reduction, "sum", _in_result_type)),
    **named("amax.default max.default", partial(reduction, "max", lambda call: call.any_tensor("self"))),
    **named("amin.default min.default", partial(reduction, "max", lambda call: call.any_tensor("self"), flip=_opposite)),
}
"""Handlers of calls with an operand or a result of integers."""


def by_type(of_floats: Handler, of_integers: Handler) -> Handler:
    """The handler for floating-point operands, or the one for integers where there are some."""
    return lambda call: of_integers(call) if has_integers(call) else of_floats(call)
