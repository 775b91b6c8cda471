"""ATen's moves by indices, running sums and orders as library ops of a kernel graph."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from mirage_eg.frontend.aten_call import FLOATING, Call, Handler, Lazy, cast, named, reshaped
from mirage_eg.frontend.aten_experts import running_count
from mirage_eg.frontend.aten_rearrangements import cut, in_runs
from mirage_eg.ir.builder import Builder, KernelGraph, Tensor


def _embedding(call: Call) -> Tensor:
    call.ignore("padding_idx")  # of the backward pass
    weight, places = call.any_tensor("weight"), call.known_array("indices")
    if places is not None and places.size and 0 <= places.min() and places.max() < weight.shape[0]:
        rows = in_runs(call, weight, places, 0, most=1)  # of one type of all tokens, or of their positions
        if rows is not None:
            return rows
    return call.graph.gather(weight, call.integers("indices"))


def _fitting(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """x as far as the indices reach in other dims, as torch.gather reads it."""
    for other, extent in enumerate(index.shape):
        x = x if other == dim else cut(x, other, 0, extent)
    return x


def _gather(call: Call) -> Tensor:
    x, index = call.any_tensor("self"), call.integers("index")
    dim = call.dim("dim", len(x.shape))
    return call.graph.take_along_dim(_fitting(x, index, dim), index, dim)


def _scatter(call: Call) -> Tensor:
    x, index = call.any_tensor("self"), call.integers("index")
    if "src" in call.arguments:
        values = call.any_tensor("src")
    else:
        values = call.graph.broadcast(call.constant(call.take("value"), str(x.dtype)), index.shape)
    return call.graph.scatter(x, index, values, call.dim("dim", len(x.shape)))


def _index_copy(call: Call) -> Tensor:
    x, dim = call.along()
    return call.graph.index_write(x, call.integers("index"), call.any_tensor("source"), dim)


def _flip(call: Call) -> Tensor:
    x = call.any_tensor("self")
    return call.graph.flip(x, call.dims("dims", len(x.shape))) if call.arguments["dims"] else x


def _diagonal(call: Call) -> Tensor:
    """diag_embed: x_i in the diagonal of a matrix of zeros."""
    call.require("offset", 0)
    call.require("dim1", -2)
    call.require("dim2", -1)
    x = call.tensor("self")
    extent = x.shape[-1]
    eye = call.lift(f"eye_{extent}", (extent, extent), "bool", lambda: np.eye(extent, dtype=bool))
    return call.graph.where(eye, reshaped(x, (*x.shape, 1)), 0)


def _cumsum(call: Call) -> Tensor:
    if (counted := running_count(call)) is not None:
        return counted
    x = call.any_tensor("self")
    return cast(call.graph.cumsum(cast(x, call.result.dtype), call.dim("dim", len(x.shape))), call.result.dtype)


def _running(op: Callable[[Tensor, Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
    """The results of an associative op on the first 1, 2, … elements, in log₂ n steps (Hillis and Steele, 1986)."""
    step = 1
    while step < (extent := x.shape[dim]):
        joined = op(cut(x, dim, step, extent), cut(x, dim, 0, extent - step))
        x, step = x.builder.concat([cut(x, dim, 0, step), joined], dim), 2 * step
    return x


def _cumprod(call: Call) -> Tensor:
    x = cast(call.any_tensor("self"), call.result.dtype)
    return _running(Tensor.__mul__, x, call.dim("dim", len(x.shape)))


def _running_extreme(op: Callable[[Builder, Tensor, Tensor], Tensor], call: Call) -> list[Lazy | str]:
    """`cummax` and `cummin`: values and places."""
    x, dim = call.along()
    return [
        lambda: _running(partial(op, x.builder), x, dim),
        "the places of running extremes are no output of the IR's ops",
    ]


def _argmax(largest: bool, call: Call) -> Tensor:
    x, dim = call.along()
    return reshaped(place_of_extreme(call.graph, x, dim, largest), call.result.shape)


def place_of_extreme(g: KernelGraph, x: Tensor, dim: int, largest: bool) -> Tensor:
    """The place of the largest or the smallest element along a dim, of not-a-number before any other."""
    if not largest and x.dtype in FLOATING:
        return g.places_of_first(-x, dim, 1, largest=True)
    return g.places_of_first(x, dim, 1, largest)


def _argsort(call: Call) -> Tensor:
    call.ignore("stable")  # ours is
    x, dim = call.along()
    return call.graph.argsort(x, dim, bool(call.take("descending")))


def _sort(call: Call) -> list[Lazy | str]:
    (x, dim), places = call.along(), _argsort(call)
    return [lambda: call.graph.take_along_dim(x, places, dim), lambda: places]


def _topk(call: Call) -> list[Lazy | str]:
    call.ignore("sorted")  # ours are
    x, dim = call.along()
    places = call.graph.places_of_first(x, dim, call.whole("k"), bool(call.take("largest")))
    return [lambda: call.graph.take_along_dim(x, places, dim), lambda: places]


HANDLERS: Mapping[str, Handler] = {
    "aten.embedding.default": _embedding,
    "aten.gather.default": _gather,
    **named("scatter.src scatter.value", _scatter),
    "aten.index_copy.default": _index_copy,
    "aten.flip.default": _flip,
    "aten.diag_embed.default": _diagonal,
    "aten.cumsum.default": _cumsum,
    "aten.cumprod.default": _cumprod,
    "aten.cummax.default": partial(_running_extreme, Builder.maximum),
    "aten.cummin.default": partial(_running_extreme, Builder.minimum),
    "aten.argmax.default": partial(_argmax, True),
    "aten.argmin.default": partial(_argmax, False),
    **named("argsort.default argsort.stable", _argsort),
    **named("sort.default sort.stable", _sort),
    "aten.topk.default": _topk,
}
