"""Shape rules: from operand shapes and attributes to the result's shape, or a GraphError saying which rule is broken.

Dims are counted from 0; `ir.checker` puts the node before every message.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from mirage_eg.ir.errors import GraphError

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]


def text(shape: Sequence[int]) -> str:
    """The text of a shape in listings and messages."""
    return "[" + ", ".join(map(str, shape)) + "]"


def row_major(shape: Shape) -> Shape:
    """Strides of a dense tensor."""
    strides = [1] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


def check_dim(dim: Any, shape: Shape) -> int:
    """The dim, which must be one of the shape's."""
    if not isinstance(dim, int) or isinstance(dim, bool) or not 0 <= dim < len(shape):
        raise GraphError(f"got dim {dim!r} for shape {text(shape)}; wanted 0 ≤ dim < {len(shape)}")
    return dim


def no_rule(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """For boundaries and graph ops, whose types `ir.graph` reads off the graph."""
    raise AssertionError("the type of this op depends on its graph")


def broadcast(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """NumPy's rule: aligned at the last dim, extents equal or 1."""
    rank = max(len(shape) for shape in operands)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in operands]
    result = []
    for extents in zip(*padded, strict=True):
        if all(extent == extents[0] for extent in extents):
            result.append(extents[0])
            continue
        wide = {extent for extent in extents if extent != 1}
        if len(wide) > 1:
            raise GraphError(f"got {' and '.join(map(text, operands))}; aligned at the last dim, extents must be equal or 1")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def reduce_dim(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The reduced dim stays with extent 1."""
    dim = check_dim(attributes["dim"], operands[0])
    return operands[0][:dim] + (1,) + operands[0][dim + 1 :]


def matmul(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """[…, m, k] @ […, k, n], leading dims broadcast."""
    left, right = operands
    if len(left) < 2 or len(right) < 2:
        raise GraphError(f"got {text(left)} and {text(right)}; both need at least two dims (reshape a vector first)")
    if left[-1] != right[-2]:
        raise GraphError(
            f"got {text(left)} @ {text(right)}; the last dim of the first ({left[-1]}) must equal "
            f"the second to last of the second ({right[-2]})"
        )
    return (*broadcast((left[:-2], right[:-2]), {}), left[-2], right[-1])


def reshape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The number of elements stays."""
    shape = tuple(attributes["shape"])
    left, right = list(operands[0]), list[int]()
    for extent in shape:  # equal extents first: products of two symbolic ones are refused
        same = (place for place, it in enumerate(left) if type(it) is type(extent) and it == extent)
        if (place := next(same, None)) is None:
            right.append(extent)
        else:
            del left[place]
    if prod(left) != prod(right) or any(extent < 1 for extent in shape):
        raise GraphError(f"got {text(operands[0])} to {text(shape)}; the number of elements must stay")
    return shape


def reshape_groups(before: Shape, after: Shape) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split a reshape into the smallest groups (dims before, dims after) of equal element count; unit dims are left out."""
    left = [dim for dim, extent in enumerate(before) if extent > 1]
    right = [dim for dim, extent in enumerate(after) if extent > 1]
    while left:
        taken, given = [left.pop(0)], [right.pop(0)]
        while (x := prod(before[dim] for dim in taken)) != (y := prod(after[dim] for dim in given)):
            if x < y:
                taken.append(left.pop(0))
            else:
                given.append(right.pop(0))
        yield tuple(taken), tuple(given)


def regrouped_dims(before: Shape, after: Shape) -> tuple[frozenset[int], frozenset[int]]:
    """The dims that a reshape splits or joins: those of the shape before it, and those of the shape behind it."""
    groups = [pair for pair in reshape_groups(before, after) if len(pair[0]) + len(pair[1]) > 2]
    return frozenset(dim for own, _ in groups for dim in own), frozenset(dim for _, made in groups for dim in made)


def transpose(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """Result dim i is operand dim permutation[i]."""
    permutation = attributes["permutation"]
    if sorted(permutation) != list(range(len(operands[0]))):
        raise GraphError(f"got permutation {text(permutation)} for shape {text(operands[0])}; wanted each dim once")
    return tuple(operands[0][dim] for dim in permutation)


def concat(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """All dims but `dim` are equal."""
    dim = check_dim(attributes["dim"], operands[0])
    first = operands[0]
    for shape in operands:
        if len(shape) != len(first) or shape[:dim] + shape[dim + 1 :] != first[:dim] + first[dim + 1 :]:
            raise GraphError(f"got {' and '.join(map(text, operands))}; all dims but dim {dim} must be equal")
    return first[:dim] + (sum(shape[dim] for shape in operands),) + first[dim + 1 :]


def taken_by_slice(extent: int, start: int, stop: int, step: int) -> range:
    """The indices that Python's slice takes of a dim; the stop is 1 above the last index."""
    if step < 1:
        raise GraphError(f"slice: got step {step}, wanted at least 1")
    start, stop = (it if it >= 0 else max(0, it + extent) for it in (start, stop))
    stop = stop if stop <= extent else extent
    if stop <= start:
        raise GraphError(f"slice: got {start}:{stop}:{step} of a dim of {extent}, wanted at least one element")
    last = (stop - start - 1) // step * step
    return range(start, start + last + 1, step if last else 1)


def slice_dim(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The elements start, start + step, … below stop along `dim`; at least one."""
    shape, start, stop, step = operands[0], attributes["start"], attributes["stop"], attributes["step"]
    dim = check_dim(attributes["dim"], shape)
    if step < 1 or not 0 <= start < stop <= shape[dim]:
        raise GraphError(
            f"got start {start}, stop {stop}, step {step} for dim {dim} of {text(shape)}; "
            f"wanted 0 ≤ start < stop ≤ {shape[dim]} and step ≥ 1"
        )
    return shape[:dim] + ((stop - start + step - 1) // step,) + shape[dim + 1 :]


def split(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """Part `index` of `parts` equal ones along `dim`."""
    shape, parts, index = operands[0], attributes["parts"], attributes["index"]
    dim = check_dim(attributes["dim"], shape)
    if parts < 1 or shape[dim] % parts or not 0 <= index < parts:
        raise GraphError(
            f"got part {index} of {parts} of dim {dim} of {text(shape)}; the extent {shape[dim]} must divide "
            "and 0 ≤ index < parts"
        )
    return shape[:dim] + (shape[dim] // parts,) + shape[dim + 1 :]


def broadcast_to(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The operand broadcasts to exactly `shape`."""
    shape = tuple(attributes["shape"])
    if broadcast((operands[0], shape), {}) != shape:
        raise GraphError(f"got {text(operands[0])} to {text(shape)}; only extents of 1 can be repeated")
    return shape


def repeat(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """Each slice along `dim` is repeated `times` times."""
    shape, times = operands[0], attributes["times"]
    dim = check_dim(attributes["dim"], shape)
    if times < 1:
        raise GraphError(f"got times {times}; wanted at least 1")
    return shape[:dim] + (shape[dim] * times,) + shape[dim + 1 :]


def pad(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """Each dim grows by its numbers before and after."""
    [x] = operands
    before, after = attributes["before"], attributes["after"]
    if len(before) != len(x) or len(after) != len(x) or any(it < 0 for it in (*before, *after)):
        raise GraphError(f"got before {text(before)} and after {text(after)} for {text(x)}; wanted {len(x)} numbers ≥ 0 each")
    return tuple(a + extent + b for a, extent, b in zip(before, x, after, strict=True))


def flip(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The operand's shape."""
    dims = attributes["dims"]
    if len(set(dims)) < len(dims):
        raise GraphError(f"got dims {text(dims)}, wanted each dim at most once")
    for dim in dims:
        check_dim(dim, operands[0])
    return operands[0]


def accumulate(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The tile's shape; with `dim`, that dim stays with extent 1."""
    return operands[0] if attributes.get("dim") is None else reduce_dim(operands, attributes)


def accumulate_strided(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """`dim` shrinks to `columns`, which must divide it."""
    shape, columns = operands[0], attributes["columns"]
    dim = check_dim(attributes["dim"], shape)
    if columns < 1 or shape[dim] % columns:
        raise GraphError(f"got {columns} columns for dim {dim} of {text(shape)}; they must divide {shape[dim]}")
    return shape[:dim] + (columns,) + shape[dim + 1 :]


def along_dim(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The first operand's shape."""
    check_dim(attributes["dim"], operands[0])
    return operands[0]


def softmax(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The first operand's shape, to which a mask broadcasts."""
    shape = along_dim(operands, attributes)
    if broadcast(operands, attributes) != shape:
        raise GraphError(f"got the mask {text(operands[1])} for {text(shape)}; wanted one that broadcasts to it")
    return shape


def first_along_dim(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The first `count` of `dim`, or all."""
    [shape] = operands
    dim = check_dim(attributes["dim"], shape)
    given = attributes.get("count")
    count = shape[dim] if given is None else given
    if attributes["descending"] not in (0, 1) or not 1 <= count <= shape[dim]:
        raise GraphError(
            f"got descending {attributes['descending']} and count {count} for dim {dim} of {text(shape)}; "
            f"wanted 0 or 1, and 1 ≤ count ≤ {shape[dim]}"
        )
    return shape[:dim] + (count,) + shape[dim + 1 :]


def of_extent(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """One dim of the given extent."""
    if attributes["extent"] < 1:
        raise GraphError(f"got extent {attributes['extent']}, wanted at least 1")
    return (attributes["extent"],)


def normalize(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The first operand's shape; weight and bias have its last `dims` dims."""
    x, *affine = operands
    dims = attributes["dims"]
    if not 1 <= dims <= len(x):
        raise GraphError(f"got normalized dims {dims} for shape {text(x)}; wanted 1 to {len(x)}")
    for shape in affine:
        if shape != x[len(x) - dims :]:
            raise GraphError(f"got weight or bias {text(shape)} for {text(x)}; wanted {text(x[len(x) - dims :])}")
    return x
