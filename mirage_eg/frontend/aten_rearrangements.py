"""ATen's views, copies, slices and concatenations as rearrangements of a kernel graph."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from math import isfinite, prod
from typing import Any

import numpy as np

from mirage_eg.frontend.aten_call import (
    FLOAT8,
    FLOATING,
    Call,
    Handler,
    Lazy,
    cast,
    expanded,
    first_of,
    named,
    reshaped,
    spelled,
)
from mirage_eg.frontend.aten_fields import joined_fields
from mirage_eg.frontend.aten_two_indices import at_rows_and_columns
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import SizeExpression


def _same(call: Call) -> Tensor:
    return call.any_tensor("self")


def _dropout(call: Call) -> Tensor:
    """The operand outside training and for p = 0, and 0 for p = 1; `fx_random` writes other dropouts as products."""
    x, probability = call.tensor("input"), call.number("p")
    if call.take("train") is False:
        return x
    if probability not in (0, 1):
        raise UnsupportedError(f"dropout with p = {float(probability):g} in training is random")
    if len(call.results) > 1:
        raise UnsupportedError("the mask of a dropout is left to torch")
    return x * 0 if probability else x


def _cast(call: Call) -> Tensor:
    """The operand in torch's element type of the result; as bool, the indicator of other numbers than 0."""
    call.ignore("other")  # has the type of the result
    x, source, target = call.any_tensor("self"), call.types["self"].dtype, call.result.dtype
    if source == target:
        return x
    if target == "bool":
        return 1 - call.graph.equal(call.tensor("self"), 0)
    if "complex" in source + target:
        raise UnsupportedError(f"a cast from {source} to {target}: an op of torch reads the complex numbers, not their pairs")
    if {source, target} - {*FLOATING, *FLOAT8, "bool"}:
        raise UnsupportedError(f"a cast from {source} to {target}: the IR computes with numbers of {', '.join(FLOATING)}")
    return cast(x, target)


def _reshape(call: Call) -> Tensor:
    """Every view that keeps the order of elements: its shape is read off the type of the result."""
    call.ignore("size", "shape", "other", "dim", "start_dim", "end_dim", "sizes")
    return reshaped(call.any_tensor("self"), call.result.shape)


def _expand(call: Call) -> Tensor:
    call.ignore("size", "other")
    return expanded(call.any_tensor("self"), call.result.shape)


def permuted(x: Tensor, permutation: Sequence[int]) -> Tensor:
    """x with its dims permuted; x itself if none moves, a reshape if only dims of extent 1 move."""
    if list(permutation) == list(range(len(x.shape))):
        return x
    moved = [dim for dim in permutation if x.shape[dim] > 1]
    if moved == sorted(moved):
        return reshaped(x, [x.shape[dim] for dim in permutation])
    return x.builder.transpose(x, permutation)


def swapped(x: Tensor, first: int, second: int) -> Tensor:
    """x with two dims swapped."""
    permutation = list(range(len(x.shape)))
    permutation[first], permutation[second] = permutation[second], permutation[first]
    return permuted(x, permutation)


def _permute(call: Call) -> Tensor:
    x = call.any_tensor("self")
    return permuted(x, call.dims("dims", len(x.shape)))


def _swap(first: str, second: str, call: Call) -> Tensor:
    x = call.any_tensor("self")
    return swapped(x, call.dim(first, len(x.shape)), call.dim(second, len(x.shape)))


def _with_order(order: Callable[[list[int]], list[int]], call: Call) -> Tensor:
    """The operand with its dims in the order that a function gives 0, 1, …"""
    x = call.any_tensor("self")
    return permuted(x, order([*range(len(x.shape))]))


def _move(call: Call) -> Tensor:
    x = call.any_tensor("self")
    rank = len(x.shape)
    source, target = call.dims("source", rank), call.dims("destination", rank)
    places = dict(zip(target, source, strict=True))
    rest = iter(dim for dim in range(rank) if dim not in source)
    return permuted(x, [places[dim] if dim in places else next(rest) for dim in range(rank)])


def cut(x: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
    """x[start:stop:step] along a dim; x itself if that is the whole."""
    return x if (start, stop, step) == (0, x.shape[dim], 1) else x.builder.slice(x, dim, start, stop, step)


def diagonal(x: Tensor, first: int, second: int, offset: int = 0) -> Tensor:
    """The elements at i and i + offset of two dims, as the last dim."""
    x = permuted(x, [*(dim for dim in range(len(x.shape)) if dim not in (first, second)), first, second])
    *batch, rows, columns = x.shape
    down, right = max(-offset, 0), max(offset, 0)
    extent = min(rows - down, columns - right)
    if extent < 1:
        raise UnsupportedError(f"offset = {offset} leaves no diagonal of {rows}×{columns} elements")
    flat = reshaped(x, (*batch, rows * columns))
    start, step = down * columns + right, columns + 1
    return cut(flat, len(batch), start, start + (extent - 1) * step + 1, step)


def _diagonal(call: Call) -> Tensor:
    x = call.any_tensor("self")
    rank = len(x.shape)
    return diagonal(x, call.dim("dim1", rank), call.dim("dim2", rank), call.whole("offset"))


def _clipped(value: int | None, extent: int, absent: int) -> int:
    """A bound of a slice as Python reads it."""
    bound = absent if value is None else value + extent if value < 0 else value
    return min(max(bound, 0), extent)


def _slice(call: Call) -> Tensor:
    x, dim = call.along()
    step, extent = call.whole("step"), x.shape[dim]
    whole = isinstance(extent, SizeExpression) and str(call.take("end")) == str(extent)
    start = None if call.take("start") is None else call.whole("start")
    stop = None if whole or call.take("end") is None else call.whole("end")
    return cut(x, dim, _clipped(start, extent, 0), _clipped(stop, extent, extent), step)


def _copy(call: Call) -> Tensor:
    """`src` in the shape and element type of `self`: what a functional graph has for an assignment."""
    call.ignore("self")
    return expanded(cast(call.any_tensor("src"), call.result.dtype), call.result.shape)


def _fill(call: Call) -> Tensor:
    """A tensor of the shape and element type of `self`, each element the same."""
    call.ignore("self")
    value = call.known_array("value") if "value" in call.types else call.take("value")
    if value is None:
        raise UnsupportedError("value is no constant")
    number = float(value)
    shape, dtype = call.result.shape, call.result.dtype
    name = f"filled_{spelled(number)}_{dtype}_{'_'.join(map(str, shape))}"
    return call.lift(name, shape, dtype, lambda: np.full(shape, int(number) if "int" in dtype else number))


def _written(call: Call, x: Tensor, part: Tensor, dim: int, start: int) -> Tensor:
    """x with a part along a dim replaced."""
    stop = start + part.shape[dim]
    pieces = [cut(x, dim, 0, start)] if start else []
    pieces.append(part)
    if stop < x.shape[dim]:
        pieces.append(cut(x, dim, stop, x.shape[dim]))
    return pieces[0] if len(pieces) == 1 else call.graph.concat(pieces, dim)


def _slice_scatter(call: Call) -> Tensor:
    x, dim = call.along()
    part, step = cast(call.any_tensor("src"), str(x.dtype)), call.whole("step")
    start = _clipped(None if call.take("start") is None else call.whole("start"), x.shape[dim], 0)
    call.ignore("end")  # the extent of the part
    if step == 1:
        return _written(call, x, part, dim, start)
    count = part.shape[dim]
    places = call.lift(f"steps_{start}_{step}_{count}", (count,), "int64", lambda: start + step * np.arange(count))
    return call.graph.index_write(x, places, part, dim)


def _select_scatter(call: Call) -> Tensor:
    x, dim = call.along()
    part, index = cast(call.any_tensor("src"), str(x.dtype)), call.whole("index")
    return _written(call, x, reshaped(part, (*x.shape[:dim], 1, *x.shape[dim + 1 :])), dim, index % x.shape[dim])


def _narrow(call: Call) -> Tensor:
    x, dim = call.along()
    start = _clipped(call.whole("start"), x.shape[dim], 0)
    return cut(x, dim, start, start + call.whole("length"))


def picked(x: Tensor, dim: int, index: int) -> Tensor:
    """x at an index of a dim, without the dim."""
    return without(cut(x, dim, index, index + 1), dim)


def without(x: Tensor, dim: int) -> Tensor:
    """x without a dim of extent 1."""
    return reshaped(x, (*x.shape[:dim], *x.shape[dim + 1 :]))


def _select(call: Call) -> Tensor:
    (x, dim), index = call.along(), call.whole("index")
    return picked(x, dim, index + x.shape[dim] if index < 0 else index)


def _pieces(x: Tensor, dim: int, sizes: Sequence[int]) -> list[Lazy | str]:
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [partial(cut, x, dim, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _parts(sizes: Callable[[Call, int], Sequence[int]], call: Call) -> list[Lazy | str]:
    """Parts along a dim of the sizes that a function gives for the call and the extent of the dim."""
    x, dim = call.along()
    return _pieces(x, dim, sizes(call, x.shape[dim]))


def _equal(size: int, extent: int) -> list[int]:
    """Parts of a size; the last one has the rest."""
    return [min(size, extent - start) for start in range(0, extent, size)]


def _unbind(call: Call) -> list[Lazy | str]:
    x, dim = call.along()
    return [partial(picked, x, dim, index) for index in range(x.shape[dim])]


def _cat(call: Call) -> Tensor:
    tensors = call.any_tensors("tensors")
    return _joined(call, tensors, call.dim("dim", len(tensors[0].shape)))


def _joined(call: Call, tensors: Sequence[Tensor], dim: int) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    fields = joined_fields(call, tensors, dim)
    return call.graph.concat(tensors, dim) if fields is None else fields


def _stack(call: Call) -> Tensor:
    tensors = call.any_tensors("tensors")
    dim = call.dim("dim", len(tensors[0].shape) + 1)
    shape = (*tensors[0].shape[:dim], 1, *tensors[0].shape[dim:])
    return _joined(call, [reshaped(x, shape) for x in tensors], dim)


_RUNS = 16  # slices that one selection may become


def _taken(call: Call, x: Tensor, name: str, index: str, dim: int) -> Tensor:
    """x at the indices of a tensor along a dim: slices, concatenated, where it is constant and has few runs; else a gather."""
    array = call.known_array(index)
    if array is None:
        return _gathered(call, x, index, dim)
    if array.dtype.kind != "i":
        raise UnsupportedError(f"{name} has element type {array.dtype}, wanted integers")
    if (slices := in_runs(call, x, array, dim)) is not None:
        return slices
    return _gathered(call, x, index, dim)


def in_runs(call: Call, x: Tensor, array: Any, dim: int, most: int = _RUNS) -> Tensor | None:
    """x at constant places along a dim as slices, or as one slice that is spread; None where slices are more than `most`."""
    extent = x.shape[dim]
    places = array.reshape(-1) % extent
    if array.size > 1 and (places == places[0]).all():
        one = cut(x, dim, int(places[0]), int(places[0]) + 1)
        thin = reshaped(one, (*x.shape[:dim], *(1 for _ in array.shape), *x.shape[dim + 1 :]))
        return expanded(thin, (*x.shape[:dim], *array.shape, *x.shape[dim + 1 :]))
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1)[:most] + 1)
    if len(runs) > most:
        return None
    parts = [cut(x, dim, int(run[0]), int(run[-1]) + 1) for run in runs]
    whole = parts[0] if len(parts) == 1 else call.graph.concat(parts, dim)
    return reshaped(whole, (*x.shape[:dim], *array.shape, *x.shape[dim + 1 :]))


def _gathered(call: Call, x: Tensor, index: str, dim: int) -> Tensor:
    return reshaped(call.graph.gather(x, call.integers(index), dim), call.result.shape)


def _index(call: Call) -> Tensor:
    x, indices = call.any_tensor("self"), call.take("indices")
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        arrays = [None if index is None else call.known_array(f"indices.{dim}") for dim, index in enumerate(indices)]
        if all((array is None) == (index is None) for array, index in zip(arrays, indices, strict=True)):
            own = zip_longest(x.shape, arrays)  # a dim without an index is taken whole, of each extent: two places decide
            few = [extent if array is not None or extent == 1 else 2 for extent, array in own]
            places = np.arange(prod(few)).reshape(few)
            taken = places[tuple(slice(None) if array is None else array for array in arrays)]
            if taken.size == places.size and (taken.reshape(-1) == places.reshape(-1)).all():
                return reshaped(x, call.result.shape)
            constants = [array for array in arrays if array is not None]
            if given == list(range(given[0], given[-1] + 1)) and all(array.dtype.kind == "i" for array in constants):
                return at_places(call, x, constants, given[0])
        if len(given) == 2 and given[1] == given[0] + 1:
            return at_rows_and_columns(call, x, given[0])
        raise UnsupportedError(f"indices for {len(given)} dims, wanted one, two neighbours, or constants for neighbours")
    return _taken(call, x, "indices", f"indices.{given[0]}", given[0])


def at_places(call: Call, x: Tensor, arrays: Sequence[Any], dim: int) -> Tensor:
    """x at constant places of some neighbouring dims: these dims become one."""
    extents = x.shape[dim : dim + len(arrays)]
    wrapped = [array % extent for array, extent in zip(arrays, extents, strict=True)]
    places = np.ravel_multi_index(np.broadcast_arrays(*wrapped), extents)
    flat = reshaped(x, (*x.shape[:dim], prod(extents), *x.shape[dim + len(arrays) :]))
    if (slices := in_runs(call, flat, places, dim)) is not None:
        return slices
    return reshaped(call.graph.gather(flat, lifted_places(call, places), dim), call.result.shape)


def lifted_places(call: Call, places: Any) -> Tensor:
    """Constant places as an input, named by their numbers."""
    return call.lift(f"places_{sha256(places.tobytes()).hexdigest()[:16]}", places.shape, "int64", lambda: places)


def _index_select(call: Call) -> Tensor:
    x, dim = call.along()
    call.ignore("index")
    return _taken(call, x, "index", "index", dim)


def _pad(call: Call) -> Tensor:
    """Constants around, or slices where a width is negative; widths are in pairs from the last dim."""
    if "mode" in call.arguments:
        call.require("mode", "constant")
    x, widths = call.any_tensor("self"), list(call.take("pad"))
    value = call.take("value")
    is_finite = not isinstance(value, float) or isfinite(value)
    number = call.number("value") if is_finite and value is not None else Fraction(0)
    pairs = [(0, 0)] * len(x.shape)
    for place, dim in zip(range(0, len(widths), 2), reversed(range(len(x.shape))), strict=False):
        before, after = widths[place : place + 2]
        x = cut(x, dim, max(0, -before), x.shape[dim] - max(0, -after))
        pairs[dim] = max(0, before), max(0, after)
    if not any(map(any, pairs)):
        return x
    padded = call.graph.pad(x, pairs, number)
    return padded if is_finite else call.graph.where(_inside(call, x.shape, pairs), padded, call.constant(value, x.dtype))


def _inside(call: Call, shape: Shape, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Where a padded tensor has the elements of the one of this shape, broadcast along dims without pads: a constant."""
    own = [extent if any(pair) else 1 for extent, pair in zip(shape, pairs, strict=True)]
    if any(isinstance(extent, SizeExpression) for extent in own):
        raise UnsupportedError("value is not finite, along a dim of a symbolic size")
    name = "_".join(map(str, ("inside", *own, *(width for pair in pairs for width in pair))))
    whole = tuple(extent + sum(pair) for extent, pair in zip(own, pairs, strict=True))
    return call.lift(name, whole, "bool", lambda: np.pad(np.ones(own, bool), pairs))


def _roll(call: Call) -> Tensor:
    x = call.any_tensor("self")
    shifts, dims = list(call.take("shifts")), list(call.take("dims"))
    if not dims:
        x, dims = reshaped(x, (prod(x.shape),)), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        dim %= len(x.shape)
        if place := -shift % x.shape[dim]:
            x = call.graph.concat([cut(x, dim, place, x.shape[dim]), cut(x, dim, 0, place)], dim)
    return reshaped(x, call.result.shape)


HANDLERS: Mapping[str, Handler] = {
    **named("contiguous.default clone.default alias.default detach.default detach_.default", _same),
    **named("lift_fresh_copy.default positive.default", _same),
    **named("dropout.default feature_dropout.default", _dropout),
    "aten.native_dropout.default": first_of(_dropout, "the mask of a dropout without random numbers"),
    **named("to.dtype to.dtype_layout to.device to.other _to_copy.default type_as.default", _cast),
    **named("view.default view_as.default _unsafe_view.default reshape.default reshape_as.default", _reshape),
    **named("flatten.using_ints unflatten.int unsqueeze.default squeeze.default squeeze.dim squeeze.dims", _reshape),
    **named("expand.default expand_as.default broadcast_to.default", _expand),
    "aten.permute.default": _permute,
    **named("transpose.int swapdims.default", partial(_swap, "dim0", "dim1")),
    "aten.swapaxes.default": partial(_swap, "axis0", "axis1"),
    **named("t.default numpy_T.default", partial(_with_order, lambda dims: dims[::-1])),
    "aten.mT.default": partial(_with_order, lambda dims: [*dims[:-2], dims[-1], dims[-2]]),
    **named("movedim.intlist movedim.int", _move),
    "aten.diagonal.default": _diagonal,
    "aten.trace.default": lambda call: reshaped(call.graph.sum(diagonal(call.tensor("self"), 0, 1), 0), ()),
    "aten.slice.Tensor": _slice,
    "aten.narrow.default": _narrow,
    "aten.copy.default": _copy,
    **named("fill.Tensor fill.Scalar", _fill),
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.select.int": _select,
    **named("split.Tensor unsafe_split.Tensor", partial(_parts, lambda call, extent: _equal(call.whole("split_size"), extent))),
    "aten.split_with_sizes.default": partial(_parts, lambda call, extent: call.take("split_sizes")),
    "aten.split.sizes": partial(_parts, lambda call, extent: call.take("split_size")),
    "aten.chunk.default": partial(_parts, lambda call, extent: _equal(-(-extent // call.whole("chunks")), extent)),
    "aten.unbind.int": _unbind,
    **named("cat.default concat.default", _cat),
    "aten.stack.default": _stack,
    "aten.roll.default": _roll,
    **named("index.Tensor _unsafe_index.Tensor", _index),
    "aten.index_select.default": _index_select,
    **named("constant_pad_nd.default pad.default", _pad),
}
