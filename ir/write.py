"""The nodes that passes write, a function for each op; operands are positions of values."""

from fractions import Fraction
from functools import partial
from typing import Any

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.ir.shapes import Shape

add, sub, mul, maximum, matmul = (partial(node, name) for name in ("add", "sub", "mul", "maximum", "matmul"))


def source(kind: TensorType, **given: Any) -> Node:
    """An input of a type."""
    return node("input", shape=kind.shape, dtype=str(kind.dtype), **given)


def cast(x: int, dtype: DType) -> Node:
    """x in another element type."""
    return node("cast", x, dtype=str(dtype))


def reshape(x: int, shape: Shape) -> Node:
    """The elements of x in row-major order under another shape."""
    return node("reshape", x, shape=shape)


def broadcast(x: int, shape: Shape) -> Node:
    """x with extents of 1 repeated up to a shape."""
    return node("broadcast", x, shape=shape)


def transpose(x: int, permutation: Shape) -> Node:
    """Dim i of the result is dim permutation[i] of x."""
    return node("transpose", x, permutation=permutation)


def sliced(x: int, dim: int, stop: int, step: int) -> Node:
    """Every `step`-th element from the first on to before `stop` along a dim."""
    return node("slice", x, dim=dim, start=0, stop=stop, step=step)


def concat(*operands: int, dim: int) -> Node:
    """The operands joined along a dim."""
    return node("concat", *operands, dim=dim)


def softmax(*operands: int, dim: int) -> Node:
    """exp(x) / Σ exp(x) along a dim; a second operand is the indicator of what counts."""
    return node("softmax", *operands, dim=dim)


def enlarged(*weight: int, window: Shape) -> Node:
    """The weight of a convolution with zeros around, up to a window."""
    return node("enlarge", *weight, window=window)


def wrapped(x: int, low: int, bits: int) -> Node:
    """x mod 2^bits of integers, from low on."""
    return node("wrap", x, low=Fraction(low), bits=Fraction(bits))


def identity(extent: int, dtype: DType) -> Node:
    """The identity matrix."""
    return node("eye", extent=extent, dtype=dtype)


def places(extent: int) -> Node:
    """0, 1, …, extent − 1."""
    return node("iota", extent=extent)


def rows(x: int, places: int) -> Node:
    """The rows of x at these places."""
    return node("gather", x, places, dim=0)


def scale(x: int, factor: int) -> Node:
    """x times a number."""
    return node("scale", x, factor=Fraction(factor))
