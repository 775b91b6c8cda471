"""`index_put`: elements written or added at indices; those for several neighbouring dims are indices of one dim.

Sums at indices that only a call knows stay with torch: it adds by atomic operations, which Inductor fuses with the elementwise
ops before them. Without these, each element of the result reads all indices. A grid samples four elements for each point,
which Inductor reads in one kernel; here each would be a kernel.
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mirage_eg.frontend.aten_call import Call, Handler, cast, expanded, named, reshaped
from mirage_eg.frontend.aten_rearrangements import cut, lifted_places
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.shapes import broadcast

_MOST = 64  # sums for one element, each a gather


def _index_put(call: Call) -> Tensor:
    x, values, indices = call.any_tensor("self"), call.any_tensor("values"), call.take("indices")
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if not given or given != list(range(given[0], given[-1] + 1)) or any(call.is_indicator(f"indices.{dim}") for dim in given):
        raise UnsupportedError(f"indices for the dims {given}, wanted whole numbers for neighbours")
    dim, behind = given[0], given[-1] + 1
    common = broadcast([call.types[f"indices.{one}"].shape for one in given], {})
    shape = (*x.shape[:dim], *common, *x.shape[behind:])
    array = call.known_array("values")
    if array is not None and x.dtype == "int64" and array.shape == shape == x.shape and array.tolist() == [*range(array.size)]:
        values = call.graph.iota(array.size)  # written at places that are an order: the inverse of it
    values = reshaped(expanded(values, shape), (*x.shape[:dim], prod(common), *x.shape[behind:]))
    flat = reshaped(x, (*x.shape[:dim], prod(x.shape[dim:behind]), *x.shape[behind:]))
    known = [call.known_array(f"indices.{one}") for one in given]
    places = None if any(array is None for array in known) else _places(known, x.shape[dim:behind], common)
    if call.take("accumulate"):
        if places is None:
            raise UnsupportedError(_ATOMIC)
        return reshaped(_added(call, flat, values, places, dim), x.shape)
    is_joint = places is not None and len(given) > 1
    index = lifted_places(call, places) if is_joint else _joint(call, given, x.shape, common)
    return reshaped(call.graph.index_write(flat, index, values, dim), x.shape)


def _places(arrays: list[Any], extents: tuple[int, ...], common: tuple[int, ...]) -> Any:
    """Constant indices of several dims as those of their product."""
    wrapped = [np.broadcast_to(array % extent, common) for array, extent in zip(arrays, extents, strict=True)]
    return np.ravel_multi_index(wrapped, extents).reshape(-1)


def _joint(call: Call, given: list[int], extents: tuple[int, ...], common: tuple[int, ...]) -> Tensor:
    """Indices of several dims as those of their product; −1 is the last of each dim."""
    g, count, joint = call.graph, prod(common), None
    for dim in given:
        index = call.integers(f"indices.{dim}")
        if len(given) > 1:
            index = cast(index, "int64")
            before = cast(g.op("less", index, index * 0), "bool")
            index = g.where(before, index + extents[dim], index)
        index = expanded(index, common)
        joint = index if joint is None else joint * extents[dim] + index
    assert joint is not None
    return reshaped(joint, (count,))


def _added(call: Call, x: Tensor, values: Tensor, places: Any, dim: int) -> Tensor:
    """x with the values added at constant places: the first one of each place, the second one, …; 0 where there is none."""
    order = np.argsort(places, kind="stable")
    first = np.searchsorted(places[order], places[order])  # of the values for the same place
    ranks = np.arange(len(places)) - first
    if (count := int(ranks.max()) + 1) > _MOST:
        raise UnsupportedError(f"accumulate = True of {count} values at one place, wanted at most {_MOST}")
    zero = [(0, int(other == dim)) for other in range(len(x.shape))]
    values = call.graph.pad(values, zero, 0)
    for rank in range(count):
        sources = np.full(x.shape[dim], len(places))
        sources[places[order][ranks == rank]] = order[ranks == rank]
        x = x + call.graph.gather(values, lifted_places(call, sources), dim)
    return x


def _known_index(call: Call, extent: int) -> Any:
    array = call.known_array("index")
    if array is None:
        raise UnsupportedError(_ATOMIC)
    if ((array < 0) | (array >= extent)).any():
        raise UnsupportedError(f"an index out of 0 to {extent - 1}")
    return array


def _index_add(call: Call) -> Tensor:
    (x, dim), source, factor = call.along(), call.any_tensor("source"), call.take("alpha")
    source = source if factor in (None, 1) else source * call.number("alpha")
    return _added(call, x, source, _known_index(call, x.shape[dim]).reshape(-1), dim)


def _scatter_add(call: Call) -> Tensor:
    """Each element has an index of its own along a dim: one of the whole tensor."""
    if "reduce" in call.arguments:
        call.require("reduce", "sum")
        call.require("include_self", True)
    (x, dim), source = call.along(), call.any_tensor("src")
    array = _known_index(call, x.shape[dim])
    places = np.indices(array.shape)
    places[dim] = array
    for place, extent in enumerate(array.shape):
        source = cut(source, place, 0, extent)
    flat, values = reshaped(x, (prod(x.shape),)), reshaped(source, (array.size,))
    return reshaped(_added(call, flat, values, np.ravel_multi_index(places, x.shape).reshape(-1), 0), x.shape)


def _left(reason: str, call: Call) -> Tensor:
    raise UnsupportedError(reason)


_ATOMIC = "sums at indices that only a call knows are atomic additions, which Inductor fuses with what computes the terms"
_SAMPLED = "samples of a grid that only a call knows: Inductor computes them in one kernel, here each corner would be one"

HANDLERS: Mapping[str, Handler] = {
    **named("index_put.default _unsafe_index_put.default", _index_put),
    **named("index_add.default", _index_add),
    **named("scatter_add.default scatter_reduce.two", _scatter_add),
    **named("index_reduce.default", partial(_left, _ATOMIC)),
    **named("grid_sampler_2d.default grid_sampler_3d.default", partial(_left, _SAMPLED)),
}
