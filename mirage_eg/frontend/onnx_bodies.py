"""Ops of the IR as nodes of ONNX: the table of an exported function's body, and the nodes of views outside of functions.

A body computes as a kernel does: floating-point numbers and indicators in float32 or float64, integers in their own type;
inputs are cast at the start, results at the end, and operands of products are rounded to their own type.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.ir.op.elementwise import PACKAGED
from mirage_eg.ir.op.literals import within_range
from mirage_eg.ir.op.moves import MOVES, MoveOp
from mirage_eg.ir.op.record import ElementwiseOp
from mirage_eg.ir.patch import written_ranges
from mirage_eg.ir.shapes import Attributes
from mirage_eg.ir.windows import AVG_POOLS, CONVOLUTIONS, MAX_POOLS, TRANSPOSED

_NARROW = (DType.float16, DType.bfloat16)
_BACKWARD_END = -(2**63) + 1  # of a slice with step −1: before the first element


@dataclass(slots=True)
class OnnxBody:
    """A list of ONNX nodes that grows; `working` is the type of floating-point numbers, None outside of functions."""

    working: DType | None = None
    prefix: str = "v"
    nodes: list[Any] = field(default_factory=list)
    count: int = 0
    constants: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def append(self, op: str, *inputs: str, results: Sequence[str] = (), **attributes: Any) -> str:
        """The name of the first result of a new node."""
        from onnx import helper

        names = list(results) or [self.name()]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0]

    def name(self) -> str:
        """A name that no other value has."""
        self.count += 1
        return f"{self.prefix}{self.count}"

    def constant(self, array: Any) -> str:
        """The name of a constant."""
        from onnx import numpy_helper

        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self.append("Constant", value=numpy_helper.from_array(array))
        return self.constants[key]

    def numbers(self, *values: int) -> str:
        """A list of whole numbers."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: Any, dtype: DType) -> str:
        """A number in the form that values of a type have here."""
        held = self.held(dtype)
        return self.constant(np.array(int(value) if held.is_integer else float(value), str(held)))

    def held(self, dtype: DType) -> DType:
        """The type that values of a type have here."""
        return dtype if self.working is None or dtype.is_integer else self.working

    def cast(self, x: str, dtype: DType) -> str:
        """A value in another type."""
        return self.append("Cast", x, to=onnx_type(dtype))

    def loaded(self, x: str, dtype: DType) -> str:
        """An input of the body in the form that its values have."""
        return x if self.held(dtype) is dtype else self.cast(x, self.held(dtype))

    def stored(self, x: str, dtype: DType, result: str) -> None:
        """The result of the body with this name."""
        if self.held(dtype) is dtype:
            self.append("Identity", x, results=[result])
        else:
            self.append("Cast", x, results=[result], to=onnx_type(dtype))


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """A value in a body: its name and its type; `computed` if it is no input, so that narrow types are not rounded yet."""

    name: str
    type: TensorType
    computed: bool = True


def onnx_type(dtype: DType) -> int:
    """The number of ONNX's element type."""
    from onnx import TensorProto

    number: int = TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(str(dtype), str(dtype).upper()))
    return number


def write_node(body: OnnxBody, item: Node, operands: Sequence[OnnxValue], result: TensorType) -> str:
    """Append the nodes of an op; the name of its value. Raises UnsupportedError: an op that ONNX does not have."""
    attributes = {name: value for name, value in item.attributes if value is not None}
    if item.op in WRITERS:
        return WRITERS[item.op](body, operands, attributes, result)
    definition = definition_of(item.op, attributes)
    if definition is None:
        raise UnsupportedError(f"the op {item.op} has no form in ONNX; wanted a custom op with a definition in other ops")

    def apply(op: str, *parts: OnnxValue, **given: Any) -> OnnxValue:
        return OnnxValue(write_node(body, node(op, **given), parts, result), result)

    return by_definition(definition, list(operands), apply).name


Writer = Callable[[OnnxBody, Sequence[OnnxValue], Attributes, TensorType], str]


def _names(operands: Sequence[OnnxValue]) -> list[str]:
    return [operand.name for operand in operands]


def _comparison(op: str, body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    return body.cast(body.append(op, *_names(_alike(body, operands))), body.held(result.dtype))


def _alike(body: OnnxBody, operands: Sequence[OnnxValue]) -> list[OnnxValue]:
    """The operands in one type: integers of two sizes in the wider."""
    held = {body.held(operand.type.dtype) for operand in operands}
    if len(held) == 1:
        return list(operands)
    wider = DType.int64 if all(dtype.is_integer for dtype in held) else body.held(DType.float32)
    return [OnnxValue(body.cast(operand.name, wider), operand.type) for operand in operands]


def _cast(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    [x] = operands
    held = body.held(result.dtype)
    if result.dtype in _NARROW or (result.dtype is DType.float32 and held is DType.float64):
        return body.cast(body.cast(x.name, result.dtype), held)
    return _converted(body, x, result)


def _converted(body: OnnxBody, x: OnnxValue, result: TensorType) -> str:
    """A value in the form that those of the result have."""
    held = body.held(result.dtype)
    return x.name if body.held(x.type.dtype) is held else body.cast(x.name, held)


def _unary(write: Callable[..., str]) -> Writer:
    """`write(append, number, x, **attributes)`; `number` gives the name of a constant of the result's type."""

    def writer(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
        return write(body.append, lambda value: body.number(value, result.dtype), operands[0].name, **attributes)

    return writer


def _fill(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    return body.append("Expand", body.number(attributes["value"], result.dtype), body.numbers(*result.shape))


def _scale(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    name, factor = operands[0].name, attributes["factor"]
    for each in (factor,) if result.dtype.is_integer else within_range(factor):
        name = body.append("Mul", name, body.number(each, result.dtype))
    return name


def _softmax(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    x, *mask = operands
    if not mask:
        return body.append("Softmax", x.name, axis=attributes["dim"])
    kept, least = body.cast(mask[0].name, DType.bool), body.number(-np.inf, x.type.dtype)
    return body.append("Softmax", body.append("Where", kept, x.name, least), axis=attributes["dim"])


def _rounded(body: OnnxBody, operand: OnnxValue) -> str:
    """An operand of a matrix unit, which holds it in its own type."""
    dtype = operand.type.dtype
    if not operand.computed or dtype not in _NARROW:
        return operand.name
    return body.cast(body.cast(operand.name, dtype), body.held(dtype))


def _reduction(op: str, body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    [x] = operands
    wide = result.dtype.is_integer and x.type.dtype is not result.dtype
    name = body.cast(x.name, result.dtype) if wide else x.name
    return body.append(op, name, body.numbers(attributes["dim"]), keepdims=1)


def _with_not_a_number(body: OnnxBody, x: OnnxValue, result: TensorType, largest: Callable[[str], str]) -> str:
    """The largest elements of some sets; not-a-number where one of the set is."""
    if x.type.dtype.is_integer or x.type.dtype is DType.bool:
        return largest(x.name)
    unknown = largest(body.cast(body.append("IsNaN", x.name), DType.float32))
    return body.append("Where", body.cast(unknown, DType.bool), body.number(np.nan, result.dtype), largest(x.name))


def _shaped(operator: str) -> Writer:
    return lambda body, operands, attributes, result: body.append(operator, operands[0].name, body.numbers(*result.shape))


def _slice(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    bounds = (body.numbers(attributes[name]) for name in ("start", "stop", "dim", "step"))
    return body.append("Slice", operands[0].name, *bounds)


def _split(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    size, dim = result.shape[attributes["dim"]], attributes["dim"]
    start = size * attributes["index"]
    return _slice(body, operands, {"start": start, "stop": start + size, "dim": dim, "step": 1}, result)


def _repeat(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    """Each element repeated in its place."""
    [x], dim, times = operands, attributes["dim"], attributes["times"]
    shape = x.type.shape
    apart = body.append("Reshape", x.name, body.numbers(*shape[: dim + 1], 1, *shape[dim + 1 :]))
    copied = body.append("Expand", apart, body.numbers(*shape[: dim + 1], times, *shape[dim + 1 :]))
    return body.append("Reshape", copied, body.numbers(*result.shape))


def _patch(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    """A ScatterND for each block: its indices cover the first dims, up to the last one that the block does not fill."""
    y, *blocks = operands
    name, shapes = y.name, [block.type.shape for block in blocks]
    for block, ranges in zip(blocks, written_ranges(len(result.shape), shapes, attributes), strict=True):
        whole = (taken == range(extent) for taken, extent in zip(reversed(ranges), reversed(result.shape), strict=True))
        named = max(1, len(ranges) - next((count for count, it in enumerate(whole) if not it), len(ranges)))
        grid = np.stack(np.meshgrid(*(np.array(taken) for taken in ranges[:named]), indexing="ij"), -1)
        name = body.append("ScatterND", name, body.constant(grid.astype(np.int64)), block.name)
    return name


def _within(body: OnnxBody, indices: OnnxValue, extent: int) -> str:
    """Indices modulo the extent."""
    return body.append("Mod", indices.name, body.number(extent, indices.type.dtype))


def _by_indices(
    operator: str, body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType
) -> str:
    (x, indices, *values), dim = operands, attributes["dim"]
    return body.append(operator, x.name, _within(body, indices, x.type.shape[dim]), *_names(values), axis=dim)


def _index_write(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    x, indices, values = operands
    dim, shape = attributes["dim"], values.type.shape
    column = body.numbers(*(-1 if place == dim else 1 for place in range(len(shape))))
    spread = body.append("Reshape", _within(body, indices, x.type.shape[dim]), column)
    spread = body.append("Expand", spread, body.numbers(*shape))
    return body.append("ScatterElements", x.name, spread, values.name, axis=dim)


def _argsort(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    """TopK names the lower of the places of equal elements first."""
    dim, places = attributes["dim"], body.name()
    largest = int(bool(attributes["descending"]))
    count = body.numbers(result.shape[dim])
    body.append("TopK", operands[0].name, count, results=[body.name(), places], axis=dim, largest=largest, sorted=1)
    return places


def _pad(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    # With one dim more, so that ONNX Runtime does not move a padded filter's zeros into the convolution of it.
    first, widths = body.numbers(0), body.numbers(0, *attributes["before"], 0, *attributes["after"])
    x = body.append("Unsqueeze", operands[0].name, first)
    padded = body.append("Pad", x, widths, body.number(attributes["value"], result.dtype))
    return body.append("Squeeze", padded, first)


def _flip(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    dims = attributes["dims"]
    if not dims:
        return operands[0].name
    bounds = (body.numbers(*[number] * len(dims)) for number in (-1, _BACKWARD_END))
    return body.append("Slice", operands[0].name, *bounds, body.numbers(*dims), body.numbers(*[-1] * len(dims)))


def _convolution(
    operator: str, body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType
) -> str:
    given = {name: list(attributes[name]) for name in ("strides", "pads", "dilations")}
    given["kernel_shape"] = list(operands[1].type.shape[2:])
    if "output_pads" in attributes:
        given["output_padding"] = list(attributes["output_pads"])
    names = (_rounded(body, operand) for operand in operands)
    return body.append(operator, *names, group=attributes["groups"], **given)


def _max_pool(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    given = {name: list(attributes[name]) for name in ("strides", "pads", "dilations")}
    given["kernel_shape"] = list(attributes["window"])
    return _with_not_a_number(body, operands[0], result, lambda x: body.append("MaxPool", x, **given))


def _avg_pool(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    given = {name: list(attributes[name]) for name in ("strides", "pads")}
    counted = int(bool(attributes["count_include_pad"]))
    return body.append(
        "AveragePool", operands[0].name, kernel_shape=list(attributes["window"]), count_include_pad=counted, **given
    )


def _by_record(op: ElementwiseOp) -> Writer:
    name = op.onnx
    if not isinstance(name, str):
        assert name is not None
        return _unary(name)
    if op.arity == 1:
        return lambda body, operands, attributes, result: body.append(name, operands[0].name)
    if op.indicator:
        return partial(_comparison, name)
    return lambda body, operands, attributes, result: body.append(name, *_names(_alike(body, operands)))


def by_index_map(op: MoveOp) -> Writer:
    """The elements of the operands, joined in row-major order, at the places that the index map gives."""

    def write(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
        shapes = [x.type.shape for x in operands]
        starts = accumulate(map(prod, shapes), initial=0)
        numbered = [np.arange(start, start + prod(shape)).reshape(shape) for start, shape in zip(starts, shapes, strict=False)]
        flat = [body.append("Reshape", x.name, body.numbers(-1)) for x in operands]
        joined = body.append("Concat", *flat, axis=0) if len(flat) > 1 else flat[0]
        return body.append("Gather", joined, body.constant(op.on_arrays(np, numbered, 0, attributes).astype(np.int64)), axis=0)

    return write


def _largest(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    """ONNX does not say what a maximum with not-a-number is, and ONNX Runtime gives another element."""

    def write(x: str) -> str:
        return body.append("ReduceMax", x, body.numbers(attributes["dim"]))

    return _with_not_a_number(body, operands[0], result, write)


def _eye(body: OnnxBody, operands: Sequence[OnnxValue], attributes: Attributes, result: TensorType) -> str:
    zeros = body.append("Expand", body.number(0, result.dtype), body.numbers(*result.shape))
    return body.append("EyeLike", zeros, dtype=onnx_type(body.held(result.dtype)))


WRITERS: Mapping[str, Writer] = {
    **{op.name: by_index_map(op) for op in MOVES.values() if "value" not in op.attributes},
    **{op.name: _by_record(op) for op in PACKAGED.values() if op.onnx is not None},
    "where": lambda body, x, given, result: body.append(
        "Where", body.cast(x[0].name, DType.bool), *_names(_alike(body, x[1:]))
    ),
    **dict.fromkeys(("cast", "to_int32", "to_int64"), _cast),
    # ONNX's cast of a float beyond the range is undefined, that of an integer takes its low byte.
    **dict.fromkeys(
        ("to_int8", "to_uint8"), lambda body, x, given, result: body.cast(body.cast(x[0].name, DType.int32), result.dtype)
    ),
    "scale": _scale,
    "fill": _fill,
    "softmax": _softmax,
    "matmul": lambda body, x, given, result: body.append("MatMul", *(_rounded(body, it) for it in x)),
    "sum": partial(_reduction, "ReduceSum"),
    "mean": partial(_reduction, "ReduceMean"),
    "max": _largest,
    "reshape": _shaped("Reshape"),
    "transpose": lambda body, x, given, result: body.append("Transpose", x[0].name, perm=list(given["permutation"])),
    "concat": lambda body, x, given, result: body.append("Concat", *_names(_alike(body, x)), axis=given["dim"]),
    "slice": _slice,
    "split": _split,
    "broadcast": _shaped("Expand"),
    "repeat": _repeat,
    "patch": _patch,
    "gather": partial(_by_indices, "Gather"),
    "take_along_dim": partial(_by_indices, "GatherElements"),
    "scatter": partial(_by_indices, "ScatterElements"),
    "index_write": _index_write,
    "cumsum": lambda body, x, given, result: body.append(
        "CumSum", _converted(body, x[0], result), body.constant(np.array(given["dim"], np.int64))
    ),
    "argsort": _argsort,
    "iota": lambda body, x, given, result: body.append(
        "Range", *(body.constant(np.array(it, np.int64)) for it in (0, given["extent"], 1))
    ),
    "full": _fill,
    "eye": _eye,
    "pad": _pad,
    "flip": _flip,
    **dict.fromkeys(CONVOLUTIONS, partial(_convolution, "Conv")),
    **dict.fromkeys(TRANSPOSED, partial(_convolution, "ConvTranspose")),
    **dict.fromkeys(MAX_POOLS, _max_pool),
    **dict.fromkeys(AVG_POOLS, _avg_pool),
}
