"""ATen's matrix products, normalizations, softmax and attention as ops of a kernel graph."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import permutations
from math import inf, isnan, prod, sqrt
from typing import Any

from mirage_eg.frontend.aten_call import SAME_ELEMENTS, Call, Handler, Lazy, behind, cast, first_of, named, over, reshaped
from mirage_eg.frontend.aten_rearrangements import swapped
from mirage_eg.frontend.known_masks import HIDDEN_BY_CUDNN, known_mask
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.sizes import SizeExpression

_HALVES = ("float16", "bfloat16")


def product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y by the rules of torch.matmul: a vector is a row on the left and a column on the right, and its dim is dropped.

    A sum over one element is none: such a product, as of frequencies and positions, is elementwise.
    """
    left = reshaped(x, (1, *x.shape)) if len(x.shape) == 1 else x
    right = reshaped(y, (*y.shape, 1)) if len(y.shape) == 1 else y
    z = left * right if left.shape[-1] == right.shape[-2] == 1 else left @ right
    shape = list(z.shape)
    if len(y.shape) == 1:
        del shape[-1]
    if len(x.shape) == 1:
        del shape[-2 if len(y.shape) > 1 else -1]
    return reshaped(z, shape)


def _matmul(left: str, right: str) -> Handler:
    return lambda call: product(call.tensor(left), call.tensor(right))


def _linear(call: Call) -> Tensor:
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.optional("bias")
    z = product(x, weight if len(weight.shape) == 1 else swapped(weight, 0, 1))
    return z if bias is None else z + bias


def _added_product(left: str, right: str) -> Handler:
    """beta · self + alpha · left @ right."""
    return lambda call: _added(call, _scaled(product(call.tensor(left), call.tensor(right)), call.number("alpha")))


def _scaled(x: Tensor, factor: Fraction) -> Tensor:
    return x if factor == 1 else x * factor


def _added(call: Call, z: Tensor) -> Tensor:
    """beta · self + z."""
    x, beta = call.tensor("self"), call.number("beta")
    return z if beta == 0 else z + _scaled(x, beta)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return reshaped(x, (*x.shape, 1)) * y


def _added_outer(call: Call) -> Tensor:
    """beta · self + (alpha · vec1) ⊗ vec2, in this order, as torch."""
    x, y = call.tensor("vec1"), call.tensor("vec2")
    return _added(call, _outer(_scaled(x, call.number("alpha")), y))


def _trailing(call: Call, x: Tensor) -> tuple[int, ...]:
    shape = tuple(call.take("normalized_shape"))
    if x.shape[len(x.shape) - len(shape) :] != shape:
        raise UnsupportedError(f"normalized_shape = {shape} is not the end of {x.shape}")
    return shape


def _layer_norm(call: Call) -> Tensor:
    x, weight, bias, eps = call.tensor("input"), call.optional("weight"), call.optional("bias"), call.number("eps")
    z = call.graph.layer_norm(x, _trailing(call, x), weight, bias if weight is not None else None, eps=eps)
    return z if bias is None or weight is not None else z + bias


_NO_STATISTICS = "the statistics of a normalization are no output of the IR's op"


def _rms_norm(call: Call) -> Tensor:
    x, weight = call.tensor("input"), call.optional("weight")
    if call.take("eps") is None:  # torch: the distance from 1 to the next number of the type that it computes in
        import torch

        if x.dtype in _HALVES and not hasattr(torch.ops.aten, "_fused_rms_norm"):
            raise UnsupportedError(f"eps = None for {x.dtype} depends on the kernel before torch 2.8")
        eps = Fraction(1, 2**52 if x.dtype == "float64" else 2**23)
    else:
        eps = call.number("eps")
    return call.graph.rms_norm(x, _trailing(call, x), weight, eps=eps)


def _over_channels(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x · weight + bias along dim 1."""
    shape = (-1,) + (1,) * (len(x.shape) - 2)
    if weight is not None:
        x = x * reshaped(weight, (*weight.shape, *shape[1:]))
    return x if bias is None else x + reshaped(bias, (*bias.shape, *shape[1:]))


def _grouped(call: Call, x: Tensor, groups: int) -> Tensor:
    """Normalized over the channels of a group and all dims behind them, then scaled and shifted along dim 1."""
    flat = reshaped(x, (x.shape[0], groups, prod(x.shape[1:]) // groups))
    normal = call.graph.layer_norm(flat, flat.shape[-1], eps=call.number("eps"))
    return _over_channels(reshaped(normal, x.shape), call.optional("weight"), call.optional("bias"))


def _group_norm(call: Call) -> Tensor:
    call.ignore("N", "C", "HxW")  # the extents of the operand
    return _grouped(call, call.tensor("input"), call.whole("group" if "group" in call.arguments else "num_groups"))


def _instance_norm(call: Call) -> Tensor:
    call.ignore("momentum", "running_mean", "running_var")
    if not call.take("use_input_stats"):
        raise UnsupportedError("use_input_stats = False is not supported")
    if call.arguments.get("running_mean") is not None:
        raise UnsupportedError("instance norm updates its running statistics")
    x = call.tensor("input")
    return _grouped(call, x, x.shape[1])


def _normalized_by_running(call: Call) -> Tensor:
    call.ignore("momentum")
    x, weight, bias = call.tensor("input"), call.optional("weight"), call.optional("bias")
    statistics = call.tensor("running_mean"), call.tensor("running_var")
    z = call.graph.batch_norm(x, *statistics, weight, bias if weight is not None else None, eps=call.number("eps"))
    return z if weight is not None else _over_channels(z, None, bias)


def _batch_norm(call: Call) -> Tensor:
    if not call.take("training"):
        return _normalized_by_running(call)
    if call.take("running_mean") is not None or call.take("running_var") is not None:
        raise UnsupportedError("batch norm in training updates its running statistics")
    call.ignore("momentum")
    return _normalized_by_batch(call)[0]


def _normalized_by_batch(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized input, and the mean and the variance of the batch: first over positions, which follow each other.

    All is computed in float32 where the input is in half precision.
    """
    given, g = call.tensor("input"), call.graph
    x = cast(given, "float32") if given.dtype in _HALVES else given
    dims = (*range(2, len(x.shape)), 0)
    mean = over("mean", x, dims)
    centred = x - mean
    variance = over("mean", g.square(centred), dims)
    normal = centred / g.sqrt(variance + call.number("eps"))
    weight, bias = (it if it is None else cast(it, x.dtype) for it in map(call.optional, ("weight", "bias")))
    return cast(_over_channels(normal, weight, bias), given.dtype), mean, variance


def _batch_norm_in_training(call: Call) -> list[Lazy | str]:
    """By the statistics of the batch; the running ones move toward them, the variance unbiased."""
    call.require("training", True)
    x, momentum = call.tensor("input"), call.number("momentum")
    z, mean, variance = _normalized_by_batch(call)
    count = prod(extent for dim, extent in enumerate(x.shape) if dim != 1)
    if isinstance(count, SizeExpression):
        raise UnsupportedError(f"running statistics of {count} elements, wanted a number known at import")

    def moved(name: str, batch: Tensor, dtype: str) -> Lazy:
        running = cast(call.tensor(name), batch.dtype)
        return lambda: cast(running * (1 - momentum) + reshaped(batch, running.shape) * momentum, dtype)

    unbiased, (*_, of_mean, of_variance) = variance * Fraction(count, max(1, count - 1)), (it.dtype for it in call.results)
    statistics = moved("running_mean", mean, of_mean), moved("running_var", unbiased, of_variance)
    return [lambda: z, *[_NO_STATISTICS] * 2, *statistics]


def _softmax(call: Call) -> Tensor:
    """In the element type of the result, to which the operand is cast first."""
    x = cast(call.tensor("self"), call.result.dtype)
    return call.graph.softmax(x, call.dim("dim", len(x.shape)))


def _safe_softmax(call: Call) -> Tensor:
    """Softmax, with zeros in rows of −∞: products of queries and keys have none, nor their sums with masks that show a key."""
    scores, result = behind(call.take("self"), SAME_ELEMENTS), _softmax(call)
    x, g = call.tensor("self"), call.graph
    dim = call.dim("dim", len(x.shape))
    added = scores.args if str(scores.target) == "aten.add.Tensor" and not scores.kwargs else (scores,)
    others = [it for it in added if not _is_above_minus_infinity(call, it)]
    pairs = permutations(added) if len(added) > 1 and dim == len(x.shape) - 1 else ()
    for shown, mask in pairs:
        if (plain := _with_known_mask(call, shown, mask, x)) is not None:
            return plain
        if others == [mask] and (known := call.known(mask)) is not None and (known.max(-1) > -inf).all():
            return result
    return g.where(_is_hidden(call, x, dim), 0, result) if others else result


def _with_known_mask(call: Call, scores: Any, mask: Any, x: Tensor) -> Tensor | None:
    """The softmax of x = scores + mask, where the mask only hides some scores; None if that is not known."""
    if not (hasattr(mask, "target") and call.has(scores) and _is_above_minus_infinity(call, scores)):
        return None
    shown, last = call.tensor_of(scores), len(x.shape) - 1
    one = known_mask(call, mask, *x.shape[-2:]) if shown.shape == x.shape and last else None
    if one is None:
        return None
    wide = cast(shown, call.result.dtype)
    if one.indicator is None:
        return call.graph.softmax(wide, last)
    result = call.graph.softmax(wide, last, one.indicator)
    return result if one.shown else call.graph.where(call.graph.max(one.indicator, 1), result, 0)


def _is_hidden(call: Call, x: Tensor, dim: int) -> Tensor:
    """Where all of x along a dim is −∞."""
    return call.graph.equal(call.graph.max(x, dim), call.constant(-inf, str(x.dtype)))


_MOVES = frozenset(
    ("aten.view", "aten._unsafe_view", "aten.expand", "aten.unsqueeze", "aten.squeeze")
    + ("aten.permute", "aten.transpose", "aten.slice", "aten.select", "aten.clone")
)
_PRODUCTS = frozenset({"aten.bmm.default", "aten.mm.default"})
_SCALED = frozenset({"aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar"})


def _is_above_minus_infinity(call: Call, given: Any) -> bool:
    """Whether a number or all values of an FX node are: those of a product of finite numbers, or with such a lower bound."""
    node = behind(given, SAME_ELEMENTS) if hasattr(given, "target") else None
    while node is not None and str(node.target) in _SCALED and not hasattr(node.args[1], "target"):
        node = behind(node.args[0], SAME_ELEMENTS)
    return (node is not None and str(node.target) in _PRODUCTS) or _least(call, given) > -inf


def _least(call: Call, given: Any) -> float:
    """A lower bound of a number or of an FX node's values: of a mask chosen between numbers the smaller one; −∞ if unknown."""
    import torch

    if not hasattr(given, "target"):
        return float(given)
    if (known := call.known(given)) is not None:
        least = float(known.min()) if known.size else inf
        return -inf if isnan(least) else least
    name, args = str(given.target), given.args
    match name.rpartition(".")[0]:
        case "aten.where" if len(args) == 3:
            return min(_least(call, args[1]), _least(call, args[2]))
        case "aten.masked_fill":
            return min(_least(call, args[0]), _least(call, args[2]))
        case "aten.full" | "aten.scalar_tensor":
            return float(args[-1])
        case "aten._to_copy":
            least, kind = _least(call, args[0]), given.meta["val"].dtype
            return least if kind.is_floating_point and least >= torch.finfo(kind).min else -inf
        case move if move in _MOVES:
            return _least(call, args[0])
    return -inf


def _log_softmax(call: Call) -> Tensor:
    """x − log Σ exp(x)."""
    x, g = cast(call.tensor("self"), call.result.dtype), call.graph
    return x - g.log(g.sum(g.exp(x), call.dim("dim", len(x.shape))))


def _logsumexp(call: Call) -> Tensor:
    x, g = call.tensor("self"), call.graph
    return reshaped(g.log(over("sum", g.exp(x), call.dims("dim", len(x.shape)))), call.result.shape)


def _grouped_heads(x: Tensor, heads: int, groups: int) -> Tensor:
    """[…, heads · groups, m, n] as […, heads, groups, m, n]; a dim of extent 1 stays so."""
    if len(x.shape) < 3:
        return x
    split = (1, 1) if x.shape[-3] == 1 else (heads, groups)
    return reshaped(x, (*x.shape[:-3], *split, *x.shape[-2:]))


_ROWS_OF_KERNELS = 64  # queries of which the library's kernels have a tile


@dataclass(frozen=True, slots=True)
class _Mask:
    """A mask of attention: numbers to add, or an indicator of the scores that count; `shown` where each row has one."""

    tensor: Tensor
    is_indicator: bool
    shown: bool


def _mask(call: Call, rows: int, columns: int, hidden: float) -> _Mask | None:
    name = "attn_bias" if "attn_bias" in call.arguments else "attn_mask"
    given, causal = call.take(name), bool(call.take("is_causal"))
    if causal and given is not None:
        raise UnsupportedError(f"{name} together with is_causal = True")
    if causal:  # the first key counts in every row
        return None if columns == 1 else _Mask(call.causal_mask(rows, columns), True, True)
    if given is None:
        return None
    if (one := known_mask(call, given, rows, columns, hidden)) is not None:
        return None if one.indicator is None else _Mask(one.indicator, True, one.shown)
    known = call.known_array(name)
    if call.is_indicator(name):
        return _Mask(call.indicator(name), True, known is not None and bool(known.any(-1).all()))
    shown = _least(call, given) > -inf or (known is not None and bool((known.max(-1) > -inf).all()))
    return _Mask(call.tensor(name), False, shown)


def _attended(call: Call, scores: Tensor, mask: _Mask | None, v: Tensor) -> Tensor:
    """softmax(scores + mask) v, or of the scores where the mask is true; a row that is hidden whole gives zeros."""
    g, last = call.graph, len(scores.shape) - 1
    if mask is None:
        return g.softmax(scores, last) @ v
    by, keys = mask.tensor, len(mask.tensor.shape) - 1
    result = (g.softmax(scores, last, by) if mask.is_indicator else g.softmax(scores + by, last)) @ v
    if mask.shown:
        return result
    return g.where(g.max(by, keys), result, 0) if mask.is_indicator else g.where(_is_hidden(call, by, keys), 0, result)


def scale_of_heads(width: int) -> Fraction:
    if isinstance(width, SizeExpression):
        raise UnsupportedError("scale = 1 / √width, and the width of heads is chosen later")
    return Fraction(str(1 / sqrt(width)))


def _before_repeats(call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values before each was repeated for all heads of its group: kernels of the library read them so.

    Few queries read them through the repeats.
    """
    if len(q.shape) < 3 or isinstance(q.shape[-2], SizeExpression) or q.shape[-2] < _ROWS_OF_KERNELS:
        return k, v
    narrow_k, narrow_v = _before_repeat(call, "key", k), _before_repeat(call, "value", v)
    if narrow_k is None or narrow_v is None or narrow_k.shape[:-2] != narrow_v.shape[:-2]:
        return k, v
    return narrow_k, narrow_v


def _before_repeat(call: Call, name: str, x: Tensor) -> Tensor | None:
    """[…, heads, n, d] of which x = […, heads · groups, n, d] repeats each head; None if x is no such tensor."""
    expanded = behind(call.take(name), SAME_ELEMENTS)
    if str(expanded.target) != "aten.expand.default" or not call.has(expanded.args[0]) or not call.has(expanded):
        return None
    source, shape = call.tensor_of(expanded.args[0]), call.tensor_of(expanded).shape
    *batch, heads, groups, n, d = shape if len(shape) > 3 else (1, 1, *shape)
    is_repeat = source.shape == (*batch, heads, 1, n, d) and x.shape == (*batch, heads * groups, n, d)
    return reshaped(source, (*batch, heads, n, d)) if is_repeat else None


def _attention(call: Call, hidden: float = -inf) -> Tensor:
    """softmax(scale · Q Kᵀ + mask) V; a known mask of numbers that are at most `hidden` hides scores."""
    call.ignore("return_debug_mask", "compute_log_sumexp", "enable_gqa")  # the kernels have no flag for groups of heads
    call.require("dropout_p", 0.0)
    q, k, v = call.tensor("query"), call.tensor("key"), call.tensor("value")
    k, v = _before_repeats(call, q, k, v)
    scale = call.number("scale") if call.take("scale") is not None else scale_of_heads(q.shape[-1])
    mask = _mask(call, q.shape[-2], k.shape[-2], hidden)
    shape = (*q.shape[:-1], v.shape[-1])
    if len(q.shape) > 2 and q.shape[-3] > k.shape[-3] > 1:
        heads, groups = k.shape[-3], q.shape[-3] // k.shape[-3]
        if v.shape[-3] != heads or heads * groups != q.shape[-3]:
            raise UnsupportedError(f"attention of {q.shape[-3]} queries' heads, {heads} of keys and {v.shape[-3]} of values")
        q = _grouped_heads(q, heads, groups)
        k, v = (reshaped(x, (*x.shape[:-2], 1, *x.shape[-2:])) for x in (k, v))
        mask = mask if mask is None else replace(mask, tensor=_grouped_heads(mask.tensor, heads, groups))
    scores = (q @ swapped(k, len(k.shape) - 2, len(k.shape) - 1)) * scale
    return reshaped(_attended(call, scores, mask, v), shape)


_KERNELS = "flash_attention flash_attention_for_cpu efficient_attention fused_attention_overrideable"
_OTHERS = ("only the first result of an attention kernel is supported",) * 8  # they serve the backward pass

HANDLERS: Mapping[str, Handler] = {
    "aten.linear.default": _linear,
    "aten.matmul.default": _matmul("self", "other"),
    **named("mm.default bmm.default", _matmul("self", "mat2")),
    "aten.mv.default": _matmul("self", "vec"),
    "aten.dot.default": _matmul("self", "tensor"),
    "aten.addmm.default": _added_product("mat1", "mat2"),
    "aten.addmv.default": _added_product("mat", "vec"),
    "aten.addr.default": _added_outer,
    "aten.outer.default": lambda call: _outer(call.tensor("self"), call.tensor("vec2")),
    "aten.baddbmm.default": _added_product("batch1", "batch2"),
    "aten.layer_norm.default": _layer_norm,
    "aten.native_layer_norm.default": first_of(_layer_norm, *[_NO_STATISTICS] * 2),
    "aten.rms_norm.default": _rms_norm,
    "aten._fused_rms_norm.default": first_of(_rms_norm, _NO_STATISTICS),
    "aten.group_norm.default": _group_norm,
    "aten.native_group_norm.default": first_of(_group_norm, *[_NO_STATISTICS] * 2),
    "aten.instance_norm.default": _instance_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": first_of(_normalized_by_running, *[_NO_STATISTICS] * 2),
    "aten._native_batch_norm_legit_functional.default": _batch_norm_in_training,
    **named("softmax.int _softmax.default", _softmax),
    "aten._safe_softmax.default": _safe_softmax,
    **named("log_softmax.int _log_softmax.default", _log_softmax),
    "aten.logsumexp.default": _logsumexp,
    "aten.scaled_dot_product_attention.default": _attention,
    **{f"aten._scaled_dot_product_{kernel}.default": first_of(_attention, *_OTHERS) for kernel in _KERNELS.split()},
    "aten._scaled_dot_product_cudnn_attention.default": first_of(partial(_attention, hidden=HIDDEN_BY_CUDNN), *_OTHERS),
}
