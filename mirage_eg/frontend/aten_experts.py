"""Ops of routed layers: counts of rows by expert, places of rows, and products of rows with the weights of their groups.

A handler looks at the calls behind an operand: a count is a whole number though torch gives a float, and the group of a row is
its expert where the rows are sorted by experts.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from mirage_eg.frontend.aten_call import FLOATING, SAME_ELEMENTS, Call, Handler, behind, cast, named, reshaped
from mirage_eg.frontend.aten_integers import INTEGERS
from mirage_eg.ir.all_experts import MOST_CHOSEN, MOST_TOKENS
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError

_CASTS = frozenset(("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default"))
_HISTOGRAM, _SORT, _TOPK = "aten.histc.default", ("aten.sort.default", "aten.sort.stable"), "aten.topk.default"


def _argument(node: Any, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call in the FX graph."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _dtype(node: Any) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _uncast(node: Any) -> Any:
    """The node of which this one is a cast, if it is of integers."""
    if str(node.target) in _CASTS and _dtype(node.args[0]) in INTEGERS:
        return node.args[0]
    return node


def _counts(node: Any) -> bool:
    """Whether a node counts the elements of another tensor by whole numbers."""
    return str(node.target) == _HISTOGRAM and _dtype(_uncast(node.args[0])) in INTEGERS


def _spread(call: Call, x: Tensor, bins: int) -> Tensor:
    """For each element and each of 0, 1, …, whether they are equal: [elements, bins]."""
    column, row = reshaped(x, (prod(x.shape), 1)), reshaped(cast(call.graph.iota(bins), x.dtype), (1, bins))
    return call.graph.equal(column, row)


def _histogram(call: Call) -> Tensor:
    """Counts of whole numbers 0, …, bins − 1, where each bin has one of them."""
    node, bins = call.take("self"), call.whole("bins")
    low, high = (call.number(name) for name in ("min", "max"))
    if _dtype(_uncast(node)) not in INTEGERS or low != 0 or high != bins - 1 or bins < 2:
        raise UnsupportedError(f"{bins} bins from {low} to {high}, wanted casts of integers, and one of them a bin")
    return cast(reshaped(call.graph.op("sum", _spread(call, call.any_tensor("self"), bins), dim=0), (bins,)), call.result.dtype)


def running_count(call: Call) -> Tensor | None:
    """A running sum of counts in an integer type: how many numbers are at most 0, 1, …; None of other operands."""
    counts, dtype = call.take("self"), call.result.dtype
    if not _counts(counts) or dtype not in INTEGERS or len(call.result.shape) != 1:
        return None
    numbers = _uncast(counts.args[0])
    if not (call.has(numbers) or numbers.op == "placeholder"):
        return None
    g, x, _ = call.graph, call.tensor_of(numbers), call.dim("dim", 1)
    column = cast(reshaped(x, (prod(x.shape), 1)), dtype)
    row = reshaped(cast(g.iota(call.result.shape[0]), dtype), (1, *call.result.shape))
    is_counted = g.less_equal(column, row) * g.less_equal(row * 0, column)  # no bin has a number below 0
    return cast(reshaped(g.op("sum", is_counted, dim=0), call.result.shape), dtype)


def _chosen_of(node: Any, experts: int) -> int:
    """How many elements, which are places of the largest among at most so many, a token has; 0 where they are none."""
    node = behind(node, SAME_ELEMENTS | _CASTS)
    if getattr(node.target, "__name__", "") != "getitem" or node.args[1] != 1 or str(node.args[0].target) != _TOPK:
        return 0
    places = node.args[0].args[0].meta["val"].shape[_argument(node.args[0], 2, "dim", -1)]
    return int(_argument(node.args[0], 1, "k")) if type(places) is int and places <= experts else 0


def _sorted_experts(call: Call, experts: int) -> tuple[Tensor | None, int]:
    """The experts of all rows, where the ends of groups are running counts of them in order, and they are in this graph.

    With the count of the experts of a token.
    """
    node = call.arguments["offs"]
    if str(node.target) != "aten.cumsum.default" or not _counts(node.args[0]):
        return None, 1
    ids = _uncast(node.args[0].args[0])
    if getattr(ids.target, "__name__", "") != "getitem" or ids.args[1] != 0 or str(ids.args[0].target) not in _SORT:
        return None, 1
    bins, each = _argument(node.args[0], 1, "bins"), _chosen_of(ids.args[0].args[0], experts)
    is_whole = bins == experts and not _argument(ids.args[0], 2, "descending", False) and each
    return (call.tensor_of(ids), each) if is_whole and call.has(ids) else (None, 1)


def _grouped_product(call: Call) -> Tensor:
    """Each row times the weight of its group: the rows of group e end at `offs[e]`; rows behind all groups are zero."""
    first, second = ("input", "weight") if "input" in call.arguments else ("self", "mat2")
    return cast(_by_groups(call, call.tensor(first), call.tensor(second)), call.result.dtype)


def _scaled_grouped_product(call: Call) -> Tensor:
    """Rows of float8 times the weights of their groups in float32, times scales of rows, and of columns of each weight."""
    call.require("scale_result", None)
    x, weights = (call.any_tensor(name) for name in ("self", "mat2"))
    own, other = (call.tensor(name) for name in ("scale_a", "scale_b"))
    if own.shape != x.shape[:1] or other.shape != (weights.shape[0], weights.shape[-1]):
        raise UnsupportedError(
            f"scales {list(own.shape)} and {list(other.shape)} of {list(x.shape)} and {list(weights.shape)}, wanted one for "
            "each row, and for each column of each weight"
        )
    product = _by_groups(call, cast(x, "float32"), weights, other)
    return cast(product * reshaped(own, (*own.shape, 1)), call.result.dtype)


def _by_groups(call: Call, x: Tensor, weights: Tensor, scales: Tensor | None = None) -> Tensor:
    """Rows times the weights of their groups, which are of the type of the rows or are cast to it, and times their scales."""
    call.require("bias", None)
    ends = call.integers("offs")
    if (len(x.shape), len(weights.shape)) != (2, 3):
        raise UnsupportedError(
            f"operands of {len(x.shape)} and {len(weights.shape)} dims, wanted rows and a weight for each group"
        )
    (rows, width), (experts, _, columns) = x.shape, weights.shape
    own, each = _sorted_experts(call, experts)
    if (chosen := rows * width * columns) > MOST_CHOSEN and not experts <= rows <= each * MOST_TOKENS:
        raise UnsupportedError(
            f"{rows} rows choose {chosen} elements of weights, wanted at most {MOST_CHOSEN}, or at least {experts} rows "
            f"of at most {MOST_TOKENS} tokens"
        )
    g, behind = call.graph, None
    if own is None:
        places = reshaped(cast(g.iota(rows), ends.dtype), (rows, 1))
        before = g.sum(g.less_equal(reshaped(ends, (1, experts)), places), dim=1)  # groups that end before a row
        own = g.clamp(reshaped(before, (rows,)), 0, experts - 1)
        behind = g.less_equal(g.slice(ends, 0, experts - 1, experts), reshaped(places, (rows,)))
    product = reshaped(reshaped(x, (rows, 1, width)) @ cast(g.gather(weights, own), x.dtype), (rows, columns))
    if scales is not None:
        product = product * g.gather(scales, own)
    return product if behind is None else g.where(reshaped(cast(behind, "bool"), (rows, 1)), 0, product)


def _floor_divided(call: Call) -> Tensor:
    """A quotient of integers by a number, rounded down."""
    divisor = call.whole("other")
    x = call.any_tensor("self")
    if divisor <= 0 or x.dtype in FLOATING:
        raise UnsupportedError(f"a quotient of {x.dtype} by {divisor}, wanted integers and a number above 0")
    return cast(x if divisor == 1 else x // divisor, call.result.dtype)


HANDLERS: Mapping[str, Handler] = {
    _HISTOGRAM: _histogram,
    "transformers.grouped_mm_fallback.default": _grouped_product,
    **named("_grouped_mm.default", _grouped_product),
    **named("_scaled_grouped_mm.default", _scaled_grouped_product),
    **named("floor_divide.default", _floor_divided),
}
