"""A term of whole tensors at given shapes, as a program of kernel-level ops; its values in float64."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.egraph.laws import Apply, Literal, Pattern, Variable
from mirage_eg.egraph.tensor.ops import op
from mirage_eg.egraph.tensor.written import Written
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS
from mirage_eg.ir.tensor import Tensor

FLOAT64 = "float64"


@dataclass(frozen=True, slots=True)
class Window:
    """Strides, pads (top, left, bottom, right) and dilations of all windows of a law that do not keep the plane."""

    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers for what a law leaves open: shapes of variables, sizes, one window and one number of groups."""

    shapes: Mapping[str, tuple[int, ...]]
    size: Callable[[Pattern], Sequence[int]]
    window: Window
    groups: int = 1


def program(term: Written, sizes: Sizes) -> Graph:
    """The program of a term; its inputs are the variables of `sizes`. Raises GraphError: the shapes do not fit the term."""
    graph = KernelGraph()
    inputs = {name: graph.new_input(shape, FLOAT64, name=name) for name, shape in sizes.shapes.items()}
    graph.mark_output(_value(graph, term, inputs, sizes))
    return graph.graph()


def _value(graph: KernelGraph, term: Written, inputs: Mapping[str, Tensor], sizes: Sizes) -> Tensor:
    if term.is_variable:
        return inputs[term.name]
    operands = [_value(graph, it, inputs, sizes) for it in term.operands]
    numbers = [number for it in term.sizes for number in sizes.size(it)]
    if any(it < 1 for it in numbers):
        raise GraphError(f"{term.name}: got sizes {numbers}, wanted numbers from 1")
    row = op(term.name)
    if row.elementwise:
        _alike(term.name, operands)
        return graph.op(row.elementwise, *operands)
    match row.base:
        case "Smul":
            return graph.mul(
                operands[0], graph.broadcast(graph.reshape(operands[1], (1,) * len(operands[0].shape)), operands[0].shape)
            )
        case "Unary" | "Binary":
            _alike(term.name, operands)
            return _function(graph, term.name.split(maxsplit=1)[1], operands)
        case "Matmul":
            return graph.matmul(*operands)
        case "Transpose":
            return graph.transpose(operands[0], (1, 0))
        case "Concat":
            return graph.concat(operands, row.axis)
        case "Split0" | "Split1":
            [x], [position], extent = operands, numbers, operands[0].shape[row.axis]
            if not 0 < position < extent:
                raise GraphError(f"{term.name}: got position {position} of axis {row.axis} of {x.shape}, wanted one within")
            return graph.slice(x, row.axis, *((0, position) if row.base == "Split0" else (position, extent)))
        case "Enlarge":
            return graph.enlarge(operands[0], tuple(numbers))
        case "One":
            return graph.ones(tuple(numbers), FLOAT64)
        case "Imatmul":
            return graph.eye(numbers[0], FLOAT64)
        case "Iconv":
            return graph.delta_kernel(numbers[0], (numbers[1], numbers[2]), 1, FLOAT64)
        case "Cpool":
            return _average_kernel(graph, numbers)
        case "Conv2d":
            x, w = operands
            window = _window(term, w.shape[2:], sizes)
            groups = int(str(term.groups)) if isinstance(term.groups, Literal) else sizes.groups
            result = graph.conv2d(x, w, window.strides, window.pads, window.dilations, groups)
            return graph.op(row.activation, result) if row.activation else result
        case "MaxPool":
            window = _window(term, numbers, sizes)
            return graph.max_pool2d(operands[0], numbers, window.strides, window.pads, window.dilations)
        case "AvgPool":
            window = _window(term, numbers, sizes)
            if window.dilations != (1, 1):
                [x], kernel = operands, _average_kernel(graph, [operands[0].shape[1], *numbers])
                return graph.conv2d(x, kernel, window.strides, window.pads, window.dilations)
            return graph.avg_pool2d(operands[0], numbers, window.strides, window.pads)
    raise AssertionError(row.base)


def _average_kernel(graph: KernelGraph, numbers: Sequence[int]) -> Tensor:
    """The kernel (channels, channels, height, width) of an average in each channel."""
    channels, height, width = numbers
    eye = graph.reshape(graph.eye(channels, FLOAT64), (channels, channels, 1, 1))
    spread = graph.broadcast(eye, (channels, channels, height, width))
    return graph.mul(spread, graph.full(spread.shape, 1 / (height * width), FLOAT64))


def _alike(name: str, operands: Sequence[Tensor]) -> None:
    shapes = [it.shape for it in operands]
    if any(shape != shapes[0] for shape in shapes):
        raise GraphError(f"{name}: got shapes {' and '.join(map(str, shapes))}, wanted equal ones")


def _window(term: Written, kernel: Sequence[int], sizes: Sizes) -> Window:
    match term.window:
        case Apply("Padded", (Literal(a), Literal(b), *pads, Literal(c), Literal(d))):
            return Window((a, b), tuple(it.value for it in pads), (c, d))  # type: ignore[arg-type, union-attr]
        case Variable():
            return sizes.window
    if any(extent % 2 == 0 for extent in kernel):
        raise GraphError(f"{term.name}: got a kernel of {tuple(kernel)} in a window that keeps the plane, wanted odd extents")
    top, left = (extent // 2 for extent in kernel)
    return Window((1, 1), (top, left, top, left), (1, 1))


def any_function(term: Written) -> str | None:
    """The name of an elementwise function of a term if it stands for any function: a variable, or one that no op has, or only
    with attributes."""
    kind, _, name = term.name.partition(" ")
    row = OPS.get(name)
    return name if kind in ("Unary", "Binary") and (row is None or row.attributes) else None


def _function(graph: KernelGraph, name: str, operands: Sequence[Tensor]) -> Tensor:
    """An elementwise op by name; any function is a polynomial here, which decides nothing but a counterexample."""
    row = OPS.get(name)
    if row is not None and not row.attributes:
        return graph.op(name, *operands)
    salt = 1 + crc32(name.encode()) % 1009
    x, y = operands[0], operands[-1]
    return graph.add(graph.mul(graph.scale(x, salt), graph.shift(y, 2)), graph.shift(graph.mul(x, graph.mul(x, x)), salt))


def values(graph: Graph, inputs: Sequence[Any]) -> Any:
    """The output of a program."""
    return evaluate(graph, [np.asarray(it, np.float64) for it in inputs], FloatAlgebra())[0]
