"""Slices of a program too large for memory: along one axis that no op reduces, each slice a program of its own.

No op combines different indices of such an axis (axis inference, `ir.axes`), so slices of the inputs give slices of the
outputs. Trusted for large programs; a test compares slices with the whole.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod

from mirage_eg.ir.axes import Axes, infer_axes, resize
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind

DimWindow = tuple[int, int, int]  # dim, start, stop


@dataclass(frozen=True, slots=True)
class Slice:
    """The program of one slice, and the window of each input that it reads (None: the whole input)."""

    graph: Graph
    windows: tuple[DimWindow | None, ...]


@dataclass(frozen=True, slots=True)
class Slicing:
    """The slices in order, and for each output the dim along which its slices are concatenated."""

    slices: tuple[Slice, ...]
    output_dims: tuple[int, ...]


def slicing_of(graph: Graph, slice_elements: int) -> Slicing | None:
    """Slices of a kernel graph whose values have at most `slice_elements`, or None: it is small enough or cannot be sliced."""
    if slice_elements < 1 or any(item.kind in (Kind.GRAPH, Kind.DERIVED) for item in graph.nodes):
        return None
    if max(prod(kind.shape) for kind in graph.types) <= slice_elements:
        return None
    try:
        axes = infer_axes(graph)
    except UnsupportedError:
        return None  # an op that combines indices of unknown axes: evaluated whole
    axis = _best_axis(graph, axes)
    if axis is None:
        return None
    largest = max(prod(kind.shape) for value, kind in enumerate(graph.types) if axis in axes.of(value))
    size, parts = axes.sizes[axis], min(axes.sizes[axis], ceil(largest / slice_elements))
    bounds = [size * i // parts for i in range(parts + 1)]
    inputs = graph.input_values
    slices = []
    for start, stop in pairwise(bounds):
        sizes = [stop - start if other == axis else extent for other, extent in enumerate(axes.sizes)]
        windows = []
        for value in inputs:
            dim = _dim_led_by(axes, axis, value)
            rest = 1 if dim is None else graph.types[value].shape[dim] // size
            windows.append(None if dim is None else (dim, start * rest, stop * rest))
        slices.append(Slice(resize(graph, axes, sizes), tuple(windows)))
    dims = [_dim_led_by(axes, axis, item.operands[0]) for item in graph.outputs]
    return Slicing(tuple(slices), tuple(dim for dim in dims if dim is not None))


def _best_axis(graph: Graph, axes: Axes) -> int | None:
    """The longest axis of the largest value along which inputs and outputs can be sliced."""
    largest = max(range(len(graph.types)), key=lambda value: prod(graph.types[value].shape))
    inputs = graph.input_values
    outputs = [item.operands[0] for item in graph.outputs]
    fitting = [
        axis
        for axis in axes.of(largest) - axes.reduced
        if all(_dim_led_by(axes, axis, value) is not None for value in outputs)
        and all(_dim_led_by(axes, axis, value) is not None for value in inputs if axis in axes.of(value))
    ]
    return max(fitting, key=lambda axis: axes.sizes[axis], default=None)


def _dim_led_by(axes: Axes, axis: int, value: int) -> int | None:
    """The dim of `value` in which `axis` is the slowest axis."""
    return next((dim for dim, parts in enumerate(axes.dims[value]) if parts[:1] == (axis,)), None)
