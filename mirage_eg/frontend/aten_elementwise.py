"""ATen's elementwise ops and reductions as ops of a kernel graph."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from math import log, prod
from operator import neg

from mirage_eg.frontend.aten_call import Call, Handler, Lazy, cast, named, over, reduction, reshaped
from mirage_eg.frontend.aten_indicators import truth
from mirage_eg.frontend.aten_library import place_of_extreme
from mirage_eg.frontend.aten_rearrangements import cut
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.op.elementwise import PACKAGED
from mirage_eg.ir.sizes import SizeExpression


def _unary(op: str) -> Handler:
    return lambda call: call.graph.op(op, call.tensor("self"))


def _composed(function: Callable[[Call, Tensor], Tensor]) -> Handler:
    return lambda call: function(call, call.tensor("self"))


def _sum(x: Tensor | Fraction, y: Tensor | Fraction, factor: Fraction) -> Tensor:
    """x + factor · y."""
    if isinstance(y, Fraction):
        assert isinstance(x, Tensor)
        return x + factor * y if factor * y else x
    if factor == -1 and isinstance(x, Tensor):
        return x - y
    scaled = y if factor == 1 else y * factor
    return x + scaled if isinstance(x, Tensor) else scaled + x


def _add(call: Call) -> Tensor:
    """A sum, in which known zeros are no term: such as the mask of a batch without padding."""
    for name, zeros in (("self", "other"), ("other", "self")):
        if call.types.get(name) == call.result and call.number("alpha") == 1 and _is_zero(call, zeros):
            return call.tensor(name)
    return _sum(call.operand("self"), call.operand("other"), call.number("alpha"))


def _is_zero(call: Call, name: str) -> bool:
    """Whether an argument is a tensor of zeros that depends on no input and no weight."""
    is_fixed = name in call.types and call.is_fixed(call.take(name))
    return is_fixed and (array := call.known_array(name)) is not None and not array.any()


def _mul(call: Call) -> Tensor:
    x, y = (call.indicator(name) if call.is_indicator(name) else call.operand(name) for name in ("self", "other"))
    if isinstance(x, Fraction) and isinstance(y, Tensor):
        x, y = y, x
    assert isinstance(x, Tensor)
    return x if y == 1 else x * y


def _div(call: Call) -> Tensor:
    call.require("rounding_mode", None)
    x, y = call.operand("self"), call.operand("other")
    if isinstance(x, Fraction):
        assert isinstance(y, Tensor)
        return x / y
    return x if y == 1 else x / y


def _pow(call: Call) -> Tensor:
    x, exponent = call.tensor("self"), call.number("exponent")
    return x if exponent == 1 else x**exponent


def _extreme(op: Callable[[KernelGraph, Tensor, Tensor | Fraction], Tensor]) -> Handler:
    return lambda call: op(call.graph, call.tensor("self"), call.tensor_or_literal("other"))


def _clamp(low_name: str, high_name: str, call: Call) -> Tensor:
    x, g = call.tensor("self"), call.graph
    low, high = (None if call.take(name) is None else call.operand(name) for name in (low_name, high_name))
    if isinstance(low, Fraction) and isinstance(high, Fraction) and low <= high:
        return g.clamp(x, low, high)
    x = x if low is None else g.maximum(x, low)
    return x if high is None else g.minimum(x, high)


def _added_of_two(combine: Callable[[Tensor, Tensor], Tensor], call: Call) -> Tensor:
    """self + combine(value · tensor1, tensor2): the factor first, as in torch, whose result stays within the range."""
    x, y, value = call.tensor("tensor1"), call.tensor("tensor2"), call.number("value")
    return _sum(call.tensor("self"), combine(x if value == 1 else x * value, y), Fraction(1))


def _gelu(call: Call) -> Tensor:
    x, form = call.tensor("self"), call.take("approximate") or "none"
    if form not in ("none", "tanh"):
        raise UnsupportedError(f"approximate = {form!r} is not supported")
    return call.graph.gelu(x) if form == "none" else call.graph.gelu_tanh(x)


_LN_2 = Fraction(log(2))  # float64's value


def _exponential(call: Call) -> Tensor:
    """A positive number to the power of a tensor."""
    base, x = call.number("self"), call.tensor("exponent")
    if base <= 0:
        raise UnsupportedError(f"self = {base}, wanted a positive number to the power of a tensor")
    return call.graph.exp(x * Fraction(log(base)))


def _ldexp(call: Call) -> Tensor:
    """x times two to the power of whole numbers, which is exact."""
    x, exponents = call.tensor("self"), call.any_tensor("other")
    return cast(cast(x, "float32") * call.graph.op("exp2", cast(exponents, "float32")), call.result.dtype)


def _prelu(call: Call) -> Tensor:
    """x where it is positive, else x · weight; a selection, so that no slope reaches a positive number."""
    x, g = call.tensor("self"), call.graph
    return g.where(g.less(-x, 0), x, x * call.tensor("weight"))


def _at_most(x: Tensor) -> Tensor:
    """The largest whole number that is not above x."""
    nearest = x.builder.op("round", x)
    return nearest - x.builder.less(x, nearest)


def _elu(call: Call) -> Tensor:
    """scale · elu(x): x where it is positive, else alpha · (exp(input_scale · x) − 1)."""
    x, g = call.tensor("self"), call.graph
    alpha, scale, input_scale = (call.number(name) for name in ("alpha", "scale", "input_scale"))
    if input_scale == 1:
        value = g.elu(x, alpha)
    else:
        value = g.relu(x) + (g.exp(g.relu(-x) * -input_scale) - 1) * alpha
    return value if scale == 1 else value * scale


_LINEAR_FROM = 20  # softplus(x) − x < 2.1e-9 from here


def _softplus(call: Call) -> Tensor:
    """log(1 + exp(βx)) / β; torch returns x where βx is above `threshold`, which is below the rounding of float32 from 20."""
    x, beta, threshold = call.tensor("self"), call.number("beta"), call.number("threshold")
    if threshold < _LINEAR_FROM:
        raise UnsupportedError(f"threshold = {threshold}, wanted at least {_LINEAR_FROM}: softplus is not x above it")
    return call.graph.softplus(x) if beta == 1 else call.graph.softplus(x * beta) / beta


def _of_result_type(call: Call) -> Tensor:
    """The operand in the element type that a reduction computes and returns, which `dtype` may choose."""
    return cast(call.tensor("self"), call.result.dtype)


def _kept(call: Call, x: Tensor, place: int = 0) -> Tensor:
    """x with the dims of torch's result, which are those of x without the reduced ones unless `keepdim`."""
    return reshaped(x, call.results[place].shape)


def _product(call: Call) -> Tensor:
    """The product of all elements, or of those along a dim: halves are multiplied until one element is left."""
    x = _of_result_type(call)
    if call.arguments.get("dim") is None:
        x, dim = reshaped(x, (prod(x.shape),)), 0
    else:
        dim = call.dim("dim", len(x.shape))
    while (extent := x.shape[dim]) > 1:
        half = extent // 2
        halves = cut(x, dim, 0, half) * cut(x, dim, half, 2 * half)
        x = call.graph.concat([halves, cut(x, dim, 2 * half, extent)], dim) if extent % 2 else halves
    return _kept(call, x)


def _extreme_along(sign: int, call: Call) -> list[Lazy | str]:
    """`max.dim` and `min.dim`: values and indices."""
    x = call.tensor("self")
    dim = call.dim("dim", len(x.shape))
    return [
        lambda: _kept(call, over("max", x, [dim]) if sign == 1 else -over("max", -x, [dim])),
        lambda: _kept(call, place_of_extreme(call.graph, x, dim, sign == 1), 1),
    ]


def _variance(call: Call) -> tuple[Tensor, Tensor]:
    """Variance and mean, with all dims."""
    x = call.tensor("self")
    dims = call.dims("dim", len(x.shape))
    count = prod(x.shape[dim] for dim in dims)
    correction = 1 if call.take("correction") is None else call.number("correction")
    if (correction and isinstance(count, SizeExpression)) or count <= correction:
        raise UnsupportedError(f"correction = {correction} of {count} elements")
    mean = over("mean", x, dims)
    squares = (x - mean) ** 2
    if isinstance(count, SizeExpression):  # a mean has no number of elements
        return over("mean", squares, dims), mean
    return over("sum", squares, dims) / (count - correction), mean


def _var_mean(call: Call) -> list[Lazy | str]:
    variance, mean = _variance(call)
    return [lambda: _kept(call, variance), lambda: _kept(call, mean, 1)]


def _vector_norm(call: Call) -> Tensor:
    x, order, g = _of_result_type(call), call.number("ord"), call.graph
    dims = call.dims("dim", len(x.shape))
    if order <= 0:
        raise UnsupportedError(f"ord = {order}, wanted a positive number")
    if order == 2:
        return _kept(call, g.sqrt(over("sum", x**2, dims)))
    return _kept(call, over("sum", g.abs(x), dims) if order == 1 else over("sum", g.abs(x) ** order, dims) ** (1 / order))


def _distances(call: Call) -> Tensor:
    """Euclidean distances of the rows of two matrices."""
    x, y, g = call.tensor("x1"), call.tensor("x2"), call.graph
    call.require("p", 2.0)
    call.ignore("compute_mode")  # differences are squared
    (*batch, rows, width), (*_, columns, _) = x.shape, y.shape
    difference = g.reshape(x, (*batch, rows, 1, width)) - g.reshape(y, (*y.shape[:-2], 1, columns, width))
    return reshaped(g.sqrt(g.sum(difference**2, len(difference.shape) - 1)), call.result.shape)


HANDLERS: Mapping[str, Handler] = {
    **{f"aten.{name}.default": _unary(op.name) for op in PACKAGED.values() for name in op.aten},
    **named("add.Tensor add.Scalar", _add),
    **named("sub.Tensor sub.Scalar", lambda call: _sum(call.operand("self"), call.operand("other"), -call.number("alpha"))),
    **named("rsub.Tensor rsub.Scalar", lambda call: _sum(call.operand("other"), call.operand("self"), -call.number("alpha"))),
    **named("mul.Tensor mul.Scalar", _mul),
    **named("div.Tensor true_divide.Tensor div.Scalar div.Tensor_mode", _div),
    "aten.addcmul.default": partial(_added_of_two, lambda x, y: x * y),
    "aten.addcdiv.default": partial(_added_of_two, lambda x, y: x / y),
    "aten.pow.Tensor_Scalar": _pow,
    **named("maximum.default max.other", _extreme(KernelGraph.maximum)),
    **named("minimum.default min.other", _extreme(KernelGraph.minimum)),
    **named(
        "clamp.default clamp.Tensor clamp_min.default clamp_max.default clamp_min.Tensor clamp_max.Tensor",
        partial(_clamp, "min", "max"),
    ),
    "aten.hardtanh.default": partial(_clamp, "min_val", "max_val"),
    "aten.relu6.default": _composed(lambda call, x: call.graph.clamp(x, 0, 6)),
    "aten.exp2.default": _composed(lambda call, x: call.graph.exp(x * _LN_2)),
    "aten.pow.Scalar": _exponential,
    "aten.ldexp.Tensor": _ldexp,
    "aten.sign.default": _composed(lambda call, x: call.graph.less(-x, 0) - call.graph.less(x, 0)),
    "aten._prelu_kernel.default": _prelu,
    "aten.neg.default": _composed(lambda call, x: -x),
    "aten.floor.default": _composed(lambda call, x: _at_most(x)),
    "aten.ceil.default": _composed(lambda call, x: -_at_most(-x)),
    "aten.trunc.default": _composed(lambda call, x: call.graph.where(call.graph.less(x, 0), -_at_most(-x), _at_most(x))),
    "aten.reciprocal.default": _composed(lambda call, x: 1 / x),
    "aten.gelu.default": _gelu,
    "aten.leaky_relu.default": _composed(lambda call, x: call.graph.leaky_relu(x, call.number("negative_slope"))),
    "aten.elu.default": _elu,
    "aten.softplus.default": _softplus,
    "aten.log_sigmoid.default": _composed(lambda call, x: -call.graph.softplus(-x)),
    **named("sum.default sum.dim_IntList", partial(reduction, "sum", _of_result_type)),
    **named("mean.default mean.dim", partial(reduction, "mean", _of_result_type)),
    **named("prod.default prod.dim_int", _product),
    **named("any.default any.dim any.dims", partial(reduction, "max", truth)),
    **named("all.default all.dim all.dims", partial(reduction, "max", truth, flip=lambda x: 1 - x)),
    **named("amax.default max.default", partial(reduction, "max", _of_result_type)),
    **named("amin.default min.default", partial(reduction, "max", _of_result_type, flip=neg)),
    "aten.max.dim": partial(_extreme_along, 1),
    "aten.min.dim": partial(_extreme_along, -1),
    "aten.var.correction": lambda call: _kept(call, _variance(call)[0]),
    "aten.std.correction": lambda call: _kept(call, call.graph.sqrt(_variance(call)[0])),
    "aten.var_mean.correction": _var_mean,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten._cdist_forward.default": _distances,
}
