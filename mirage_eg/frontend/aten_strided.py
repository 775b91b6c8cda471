"""ATen's windows by distances in memory, `as_strided` and `unfold`, as slices and reshapes."""

from collections.abc import Mapping, Sequence
from math import prod

from mirage_eg.frontend.aten_call import Call, Handler, expanded, named, reshaped
from mirage_eg.frontend.aten_rearrangements import cut, permuted
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError

_LONGEST = 64  # slices that windows may become

Step = tuple[int, int]  # extent of a dim, and the distance of its elements


def _unfold(call: Call) -> Tensor:
    """Windows along a dim; their elements are a new last dim."""
    x = call.any_tensor("self")
    dim, size, step = call.dim("dimension", len(x.shape)), call.whole("size"), call.whole("step")
    last = len(x.shape) - 1
    count = (x.shape[dim] - size) // step + 1
    windows = _windows(permuted(x, [*range(dim), *range(dim + 1, last + 1), dim]), 0, (count, step), size)
    return permuted(windows, [*range(dim), last, *range(dim, last), last + 1])


def _as_strided(call: Call) -> Tensor:
    """The elements of the operand's memory at so many distances along each dim, from an offset on."""
    x, value = call.any_tensor("self"), call.values["self"]
    strides, start = list(value.stride()), value.storage_offset()
    extents, distances = list(call.take("size")), list(call.take("stride"))
    if {type(it) for it in (*x.shape, *strides, start, *extents, *distances)} - {int}:
        raise UnsupportedError("a size or stride is chosen later")
    order = sorted((dim for dim, extent in enumerate(x.shape) if extent > 1), key=lambda dim: -strides[dim])
    if not _row_major([(x.shape[dim], strides[dim]) for dim in order]):
        raise UnsupportedError(f"self has the strides {strides}, wanted elements without gaps")
    offset = 0 if call.take("storage_offset") is None else call.whole("storage_offset") - start
    wanted = [dim for dim, distance in enumerate(distances) if extents[dim] > 1 and distance]
    wanted.sort(key=lambda dim: -distances[dim])
    steps = [(extents[dim], distances[dim]) for dim in wanted]
    if offset < 0 or offset + _reach(steps) > prod(x.shape):
        raise UnsupportedError(f"size = {extents}, stride = {distances} reach beyond the elements of self")
    flat = permuted(x, [*order, *(dim for dim, extent in enumerate(x.shape) if extent == 1)])
    z = _apart(reshaped(flat, (prod(x.shape),)), offset, steps)
    z = permuted(z, [wanted.index(dim) for dim in sorted(wanted)])
    z = reshaped(z, [extent if dim in wanted else 1 for dim, extent in enumerate(extents)])
    return expanded(z, tuple(extents))


def _reach(steps: Sequence[Step]) -> int:
    """The elements from the first to the last one."""
    return 1 + sum((extent - 1) * distance for extent, distance in steps)


def _row_major(steps: Sequence[Step]) -> bool:
    return all(distance == prod(extent for extent, _ in steps[place + 1 :]) for place, (_, distance) in enumerate(steps))


def _apart(x: Tensor, start: int, steps: Sequence[Step]) -> Tensor:
    """Elements of the last dim at distances that fall from dim to dim."""
    reach, last = _reach(steps), len(x.shape) - 1
    if _row_major(steps):
        return reshaped(cut(x, last, start, start + reach), (*x.shape[:last], *(extent for extent, _ in steps)))
    first, *rest = steps
    return _apart(_windows(x, start, first, _reach(rest)), 0, rest)


def _windows(x: Tensor, start: int, step: Step, size: int) -> Tensor:
    """Windows of the last dim, the first one from `start` on: [..., count, size]. Those that overlap are parts side by side."""
    (_, distance), last = step, len(x.shape) - 1
    if -(-size // distance) > _LONGEST:
        raise UnsupportedError(f"size = {size} of windows {distance} apart, wanted at most {_LONGEST} times the distance")
    parts = [_rows(x, start + at, step, min(distance, size - at)) for at in range(0, size, distance)]
    return parts[0] if len(parts) == 1 else x.builder.concat(parts, last + 1)


def _rows(x: Tensor, start: int, step: Step, size: int) -> Tensor:
    """Windows that do not overlap: a reshape, of which a part of each row is taken."""
    (count, distance), last = step, len(x.shape) - 1
    lead, end = x.shape[:last], start + (count - 1) * distance + size
    if count == 1 or size == 1:
        return reshaped(cut(x, last, start, end, distance if size == 1 else 1), (*lead, count, size))
    if start + count * distance <= x.shape[last]:
        before = 0
    elif end >= count * distance:
        before = distance - size
    else:  # memory ends with the last window, and begins less than a distance before the first
        rows = _rows(x, start, (count - 1, distance), size)
        return x.builder.concat([rows, reshaped(cut(x, last, end - size, end), (*lead, 1, size))], last)
    whole = cut(x, last, start - before, start - before + count * distance)
    return cut(reshaped(whole, (*lead, count, distance)), last + 1, before, before + size)


HANDLERS: Mapping[str, Handler] = {
    "aten.unfold.default": _unfold,
    **named("as_strided.default as_strided_copy.default", _as_strided),
}
