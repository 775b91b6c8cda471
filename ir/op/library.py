"""Ops that are a kernel of the library wherever they are: moves by indices, scans, orders, constants, windows over images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from string import ascii_lowercase
from typing import Any

from mirage_eg.ir import indexing, shapes, windows
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op import window_calls
from mirage_eg.ir.op.literals import number
from mirage_eg.ir.op.record import Apply, OpOnShapes
from mirage_eg.ir.shapes import Attributes, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryOp(OpOnShapes):
    """A library op: shape rule, meaning on numbers and in the finite field, sums, and the call of torch.

    A move by indices has `move(xp, arrays, lead, attributes)` on arrays whose first `lead` dims are not the op's business; the
    operand at `indices` is a tensor of integers that says where. Another op has `compute(a, *operands, lead, attributes)`, with
    the functions of an arithmetic: of numbers (`backends.evaluator.library_ops`), or of residues (`library_semantics` there).

    `terms(shapes, attributes)`: so many products of an element of each operand are summed for an element, or averaged. `keyed`:
    the op satisfies other laws in the field than on numbers. `orders`: all components of the result are of the first one of the
    operand. `counts`: each element is its place. `running`: each is the sum of those up to it along `dim`. `call` writes a
    constant on the device of the operand given. `dtype` is that of the result where it is not the first operand's.
    `of_integers`: whether operands may be integers, or the type of the result if they are.

    `axes(operands, attributes)` names the axes of all dims by letters, like einsum: the op is the same function at each index
    of a small letter, and sums over it if the result lacks it; it tells apart the indices of a capital. The windows of P, Q
    and R slide over H, V and W. Without it the op tells apart all indices.

    `expand` writes an op that others define in those, for readers that know these (`ir.expand`).
    """

    arity: int = 1
    dtype: DType | None = None
    of_integers: bool | DType = True
    indices: int | None = None
    move: Callable[[Any, Sequence[Any], int, Attributes], Any] | None = None
    compute: Callable[..., Any] | None = None
    terms: Callable[[Sequence[Shape], Attributes], int] | None = None
    keyed: bool = False
    counts: bool = False
    orders: bool = False
    running: bool = False
    axes: Callable[[Sequence[Shape], Attributes], str] | None = None


_DIM = {"dim": "int"}
_WINDOWS = {"window": "ints", "strides": "ints", "pads": "ints"}  # pads: all before, then all after


def _dims(operands: Sequence[Shape], given: Attributes) -> list[str]:
    """A letter for each dim of the first operand, a capital for the one that the op walks."""
    letters = [*ascii_lowercase[: len(operands[0])]]
    letters[given["dim"]] = "D"
    return letters


def _walked_axes(operands: Sequence[Shape], given: Attributes) -> str:
    letters = "".join(_dims(operands, given))
    return f"{letters}->{letters.replace('D', 'E') if 'count' in given else letters}"


def _gather_axes(operands: Sequence[Shape], given: Attributes) -> str:
    rank, letters = len(operands[0]), "".join(_dims(operands, given))
    places = ascii_lowercase[rank : rank + len(operands[1])]  # the same function at each of them, of the number that is there
    return f"{letters},{places}->{letters.replace('D', places)}"


def _write_axes(operands: Sequence[Shape], given: Attributes) -> str:
    letters = "".join(_dims(operands, given))
    return f"{letters},E,{letters.replace('D', 'E')}->{letters}"


def _write_text(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    """With indices that count from the end below 0, which torch.index_copy does not take."""
    dim, index = attributes["dim"], f"{x[1]}.long()"
    return f"torch.index_copy({x[0]}, {dim}, torch.where({index} < 0, {index} + {x[0]}.shape[{dim}], {index}), {x[2]})"


def _argsort_text(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    """Of equal elements the first is first; torch's topk has no order, so it is called for several places alone."""
    dim, descending = attributes["dim"], bool(attributes["descending"])
    if attributes.get("count") == 1:
        whole = f"torch.argsort({x[0]}, dim={dim}, stable=True).narrow({dim}, 0, 1)"
        return f"torch.argmax({x[0]}, dim={dim}, keepdim=True)" if descending else whole
    if "count" in attributes:
        return f"torch.topk({x[0]}, {attributes['count']}, dim={dim}, largest={descending}).indices"
    return f"torch.argsort({x[0]}, dim={dim}, descending={descending}, stable=True)"


def _full_text(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    value, dtype = attributes["value"], attributes["dtype"]
    filling = int(value) if DType(dtype).is_integer else number(value)
    return f"torch.full({tuple(attributes['shape'])}, {filling}, dtype=torch.{dtype}, device={x[0]}.device)"


def _by_groups(of_one: str, of_several: str) -> Callable[[Sequence[Shape], Attributes], str]:
    return lambda operands, given: of_one if given["groups"] == 1 else of_several


def _convolution(dims: int) -> LibraryOp:
    image, windows_, taps = "HVW"[-dims:], "PQR"[-dims:], "IJK"[-dims:]
    return LibraryOp(
        name=f"conv{dims}d",
        arity=2,
        shape=partial(windows.conv_shape, dims=dims),
        attributes={"strides": "ints", "pads": "ints", "dilations": "ints", "groups": "int"},
        of_integers=False,
        compute=lambda a, x, weight, lead, given: a.convolved(x, weight, lead, given),
        terms=lambda operands, given: prod(operands[1][1:]),
        axes=_by_groups(f"nc{image},oc{taps}->no{windows_}", f"nC{image},OE{taps}->nF{windows_}"),
        call=window_calls.convolution,
        noun="images",
    )


def _written_transposed(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    """conv(x with s − 1 zeros after each element, and d(k − 1) − pads around; w with input and output channels exchanged in
    each group, flipped)."""
    (images, channels, *extents), (_, filters, *window) = shapes
    x, weight = operands
    groups, strides, dilations, dims = attributes["groups"], attributes["strides"], attributes["dilations"], len(window)
    if any(stride > 1 for stride in strides):
        x = apply("reshape", x, shape=(images, channels, *(it for extent in extents for it in (extent, 1))))
        after = (0, 0, *(it for stride in strides for it in (0, stride - 1)))
        x = apply("pad", x, before=(0,) * len(after), after=after, value=Fraction(0))
        extents = [extent * stride for extent, stride in zip(extents, strides, strict=True)]
        x = apply("reshape", x, shape=(images, channels, *extents))
    reach = [dilation * (taps - 1) for dilation, taps in zip(dilations, window, strict=True)]
    before, after = windows.sides(attributes)
    before = tuple(own - pad for own, pad in zip(reach, before, strict=True))
    ends = zip(reach, after, attributes["output_pads"], strides, strict=True)
    after = tuple(own - pad + more - (stride - 1) for own, pad, more, stride in ends)
    for dim, (low, high, extent) in enumerate(zip(before, after, extents, strict=True), 2):
        if low < 0 or high < 0:
            x = apply("slice", x, dim=dim, start=max(-low, 0), stop=extent + min(high, 0), step=1)
    weight = apply("flip", weight, dims=tuple(range(2, 2 + dims)))
    if groups > 1:
        weight = apply("reshape", weight, shape=(groups, channels // groups, filters, *window))
        weight = apply("transpose", weight, permutation=(0, 2, 1, *range(3, 3 + dims)))
        weight = apply("reshape", weight, shape=(groups * filters, channels // groups, *window))
    else:
        weight = apply("transpose", weight, permutation=(1, 0, *range(2, 2 + dims)))
    pads = tuple(max(width, 0) for width in (*before, *after))
    return apply(f"conv{dims}d", x, weight, strides=(1,) * dims, pads=pads, dilations=dilations, groups=groups)


def _transposed(dims: int) -> LibraryOp:
    image, result, taps = "HVW"[-dims:], "XYZ"[-dims:], "IJK"[-dims:]
    return LibraryOp(
        name=f"conv_transpose{dims}d",
        arity=2,
        shape=partial(windows.conv_transpose_shape, dims=dims),
        attributes={"strides": "ints", "pads": "ints", "output_pads": "ints", "dilations": "ints", "groups": "int"},
        of_integers=False,
        compute=lambda a, x, weight, lead, given: a.convolved(x, weight, lead, given),
        expand=_written_transposed,
        terms=lambda operands, given: operands[1][0] // given["groups"] * prod(operands[1][2:]),
        axes=_by_groups(f"nc{image},co{taps}->no{result}", f"nC{image},CE{taps}->nF{result}"),
        call=window_calls.transposed,
        noun="images",
    )


def _pool_axes(dims: int) -> Callable[[Sequence[Shape], Attributes], str]:
    return lambda operands, given: f"nc{'HVW'[-dims:]}->nc{'PQR'[-dims:]}"


def _maximum(dims: int) -> LibraryOp:
    return LibraryOp(
        name=f"max_pool{dims}d",
        shape=partial(windows.pool_shape, dims=dims),
        attributes={**_WINDOWS, "dilations": "ints"},
        of_integers=False,
        compute=lambda a, x, lead, given: a.largest_of_windows(x, lead, given),
        keyed=True,
        axes=_pool_axes(dims),
        call=window_calls.maximum,
        noun="largest",
    )


def _average(dims: int) -> LibraryOp:
    return LibraryOp(
        name=f"avg_pool{dims}d",
        shape=partial(windows.pool_shape, dims=dims),
        attributes={**_WINDOWS, "count_include_pad": "int"},
        of_integers=False,
        compute=lambda a, x, lead, given: a.mean_of_windows(x, lead, given),
        terms=lambda operands, given: prod(given["window"]),
        axes=_pool_axes(dims),
        call=window_calls.average,
        noun="averaged",
    )


OPS = (
    LibraryOp(
        name="gather",
        arity=2,
        shape=indexing.gather_shape,
        attributes=_DIM,
        indices=1,
        move=indexing.gather,
        axes=_gather_axes,
        call=lambda x, attributes, operands: f"{x[0]}[{':, ' * attributes['dim']}{x[1]}]",
        noun="rows",
    ),
    LibraryOp(
        name="take_along_dim",
        arity=2,
        shape=indexing.take_along_shape,
        attributes=_DIM,
        indices=1,
        move=indexing.take_along_dim,
        call=lambda x, a, _: f"torch.gather({x[0]}, {a['dim']}, {x[1]}.long())",
        noun="picked",
    ),
    LibraryOp(
        name="index_write",
        arity=3,
        shape=indexing.index_write_shape,
        attributes=_DIM,
        indices=1,
        move=indexing.index_write,
        axes=_write_axes,
        call=_write_text,
        noun="written",
    ),
    LibraryOp(
        name="scatter",
        arity=3,
        shape=indexing.scatter_shape,
        attributes=_DIM,
        indices=1,
        move=indexing.scatter,
        call=lambda x, a, _: f"torch.scatter({x[0]}, {a['dim']}, {x[1]}.long(), {x[2]})",
        noun="written",
    ),
    LibraryOp(
        name="cumsum",
        shape=shapes.along_dim,
        attributes=_DIM,
        of_integers=DType.int64,
        running=True,
        compute=lambda a, x, lead, given: a.running_sum(x, lead + given["dim"]),
        terms=lambda operands, given: operands[0][given["dim"]],
        axes=_walked_axes,
        call=lambda x, a, _: f"torch.cumsum({x[0]}, dim={a['dim']})",
        noun="running_sum",
    ),
    LibraryOp(  # the places of the elements in order, equal ones as they come; the first `count` of them
        name="argsort",
        shape=shapes.first_along_dim,
        attributes={"dim": "int", "descending": "int", "count": "int?"},
        dtype=DType.int64,
        compute=lambda a, x, lead, given: a.order(x, lead, given),
        keyed=True,
        orders=True,
        axes=_walked_axes,
        call=_argsort_text,
        noun="order",
    ),
    LibraryOp(  # 0, 1, 2, …
        name="iota",
        arity=0,
        shape=shapes.of_extent,
        attributes={"extent": "int"},
        dtype=DType.int64,
        compute=lambda a, lead, given: a.constant(a.xp.arange(given["extent"], dtype=float), lead),
        call=lambda x, a, _: f"torch.arange({a['extent']}, device={x[0]}.device)",
        noun="places",
        counts=True,
    ),
    LibraryOp(
        name="full",
        arity=0,
        shape=windows.full_shape,
        attributes={"shape": "ints", "value": "rational", "dtype": "text"},
        compute=lambda a, lead, given: a.filled(given["shape"], given["value"], lead),
        axes=lambda operands, given: f"->{ascii_lowercase[: len(given['shape'])]}",
        call=_full_text,
        noun="constant",
    ),
    LibraryOp(
        name="eye",
        arity=0,
        shape=windows.eye_shape,
        attributes={"extent": "int", "dtype": "text"},
        compute=lambda a, lead, given: a.constant(a.xp.eye(given["extent"], dtype=float), lead),
        call=lambda x, a, _: f"torch.eye({a['extent']}, dtype=torch.{a['dtype']}, device={x[0]}.device)",
        noun="identity",
    ),
    *map(_convolution, windows.DIMS),
    *map(_transposed, windows.DIMS),
    *map(_maximum, windows.DIMS),
    *map(_average, windows.DIMS),
)
LIBRARY: Mapping[str, LibraryOp] = {op.name: op for op in OPS}

COUNTS = frozenset(op.name for op in OPS if op.counts)
ORDERS = frozenset(op.name for op in OPS if op.orders)
RUNNING_SUMS = frozenset(op.name for op in OPS if op.running)
CHOICES = frozenset(name for name, op in LIBRARY.items() if op.indices is not None and op.arity == 2)  # of a part of operand 0
ROW_READS = frozenset(name for name in CHOICES if LIBRARY[name].axes is not None)  # of whole slices, as are ROW_WRITES
ROW_WRITES = frozenset(name for name, op in LIBRARY.items() if op.indices is not None and op.arity == 3 and op.axes is not None)
