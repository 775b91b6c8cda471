"""The ops that move elements by computed indices: shape rules, and the movement on arrays of NumPy or CuPy.

    gather(x, indices, dim)                  result[…, *j, …] = x[…, indices[*j], …]: embedding, index_select
    take_along_dim(x, indices, dim)          result[…, j, …] = x[…, indices[…, j, …], …]: torch.gather
    index_write(x, indices, values, dim)     x, but result[…, indices[j], …] = values[…, j, …]: index_copy, index_put
    scatter(x, indices, values, dim)         x, but result[…, indices[…, j, …], …] = values[…, j, …]
    take(x, dim, places)                     result[…, j, …] = x[…, places[j], …] for constant places: slices, joined

An index counts modulo the extent, so that the ops are total: −1 is the last element. Of two values for one element the last one
is written.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.shapes import Attributes, Shape, broadcast, check_dim, text


def gather_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The indices' dims in place of `dim`."""
    x, indices = operands
    dim = check_dim(attributes["dim"], x)
    return x[:dim] + indices + x[dim + 1 :]


def take_along_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The shape of the indices, which is that of x but for `dim`."""
    x, indices = operands
    _check_along(x, indices, check_dim(attributes["dim"], x), "indices")
    return indices


def index_write_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The shape of x; `values` has one slice for each of the indices, which have one dim."""
    x, indices, values = operands
    dim = check_dim(attributes["dim"], x)
    if len(indices) != 1:
        raise GraphError(f"got indices of shape {text(indices)}, wanted one dim (reshape them first)")
    wanted = x[:dim] + indices + x[dim + 1 :]
    if values != wanted:
        raise GraphError(f"got values {text(values)}, wanted {text(wanted)}: a slice of {text(x)} for each index")
    return x


def scatter_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The shape of x; indices and values have one shape, which is that of x but for `dim`."""
    x, indices, values = operands
    _check_along(x, indices, check_dim(attributes["dim"], x), "indices")
    if values != indices:
        raise GraphError(f"got values {text(values)}, wanted the shape of the indices, {text(indices)}")
    return x


MOST_RUNS = 64
"""Runs of constant places, each of which is a slice of its own."""


def take_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The number of places in place of `dim`."""
    [x], places = operands, attributes["places"]
    dim = check_dim(attributes["dim"], x)
    if not places or not all(0 <= place < x[dim] for place in places):
        raise GraphError(f"got places {text(places[:8])} of {text(x)}; wanted at least one, and 0 ≤ place < {x[dim]}")
    if (count := len(runs(places))) > MOST_RUNS:
        raise GraphError(f"got places in {count} runs, wanted at most {MOST_RUNS}; make them an input of int64, for gather")
    return x[:dim] + (len(places),) + x[dim + 1 :]


def runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """The places as arithmetic progressions (first, step, count) in order, each as long as possible from its first place on."""
    found: list[tuple[int, int, int]] = []
    for place in places:
        if found:
            first, step, count = found[-1]
            if count == 1 or place == first + step * count:
                found[-1] = first, place - first if count == 1 else step, count + 1
                continue
        found.append((place, 1, 1))
    return found


def _check_along(x: Shape, other: Shape, dim: int, what: str) -> None:
    if len(other) != len(x) or other[:dim] + other[dim + 1 :] != x[:dim] + x[dim + 1 :]:
        raise GraphError(f"got {what} {text(other)} for {text(x)}; all dims but dim {dim} must be equal")


def _leading(arrays: Sequence[Any], lead: int) -> Shape:
    return broadcast([array.shape[:lead] for array in arrays], {}) if lead else ()


def _places(xp: Any, shape: Shape, indices: Any, axis: int) -> tuple[Any, ...]:
    """An index into an array of `shape`: `indices` along the axis, each other dim by itself."""
    rank = len(shape)
    own = [xp.arange(extent).reshape([-1 if other == dim else 1 for other in range(rank)]) for dim, extent in enumerate(shape)]
    return (*own[:axis], indices % shape[axis], *own[axis + 1 :])


def _taken(xp: Any, x: Any, indices: Any, lead: int, dim: int) -> Any:
    x = xp.broadcast_to(x, _leading([x, indices], lead) + x.shape[lead:])
    return x[_places(xp, x.shape, indices, lead + dim)]


def _written(xp: Any, x: Any, indices: Any, values: Any, lead: int, dim: int) -> Any:
    result = xp.broadcast_to(x, _leading([x, indices, values], lead) + x.shape[lead:]).astype(xp.result_type(x, values))
    result[_places(xp, result.shape, indices, lead + dim)] = values
    return result


def _by_slices(x: Any, lead: int, dim: int, count: int = 1) -> Any:
    """The array as [lead …, before, `count` dims, after], the dims from `dim` on as one."""
    shape = x.shape[lead:]
    return x.reshape(*x.shape[:lead], prod(shape[:dim]), prod(shape[dim : dim + count]), prod(shape[dim + count :]))


def gather(xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    """See the head of the file; the first `lead` dims of all arrays go together."""
    x, indices = arrays
    dim = attributes["dim"]
    taken = _taken(xp, _by_slices(x, lead, dim), _by_slices(indices, lead, 0, indices.ndim - lead), lead, 1)
    shape = x.shape[lead:]
    return taken.reshape(*taken.shape[:lead], *shape[:dim], *indices.shape[lead:], *shape[dim + 1 :])


def take_along_dim(xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    """See the head of the file."""
    x, indices = arrays
    return _taken(xp, x, indices, lead, attributes["dim"])


def index_write(xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    """See the head of the file."""
    x, indices, values = arrays
    dim = attributes["dim"]
    written = _written(xp, _by_slices(x, lead, dim), _by_slices(indices, lead, 0), _by_slices(values, lead, dim), lead, 1)
    return written.reshape(*written.shape[:lead], *x.shape[lead:])


def scatter(xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    """See the head of the file."""
    x, indices, values = arrays
    return _written(xp, x, indices, values, lead, attributes["dim"])
