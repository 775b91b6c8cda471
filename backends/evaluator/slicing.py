"""How a program too large for memory is cut: along one axis that no op reduces, every slice of it a program of its own.

An index of such an axis meets no other index of it anywhere between inputs and outputs (axis inference, `ir.axes`), so slices
of the inputs give slices of the outputs. Part of the trusted core for large programs; a test holds it equal to the whole.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, prod

from mirage_eg.ir.axes import Axes, infer_axes, resize
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind

DimWindow = tuple[int, int, int]  # dim, first index, index behind the last


@dataclass(frozen=True, slots=True)
class Slice:
    """The program of one slice, and the window of each input that it takes (None: whole)."""

    graph: Graph
    windows: tuple[DimWindow | None, ...]


@dataclass(frozen=True, slots=True)
class Slicing:
    """The slices in order, and for each output the dim along which its slices are put together."""

    pieces: tuple[Slice, ...]
    output_dims: tuple[int, ...]


def slicing_of(graph: Graph, slice_elements: int) -> Slicing | None:
    """Slices of a kernel graph with no value above `slice_elements`, or None: it is small enough or cannot be cut."""
    if slice_elements < 1 or any(OPS[item.op].kind in (Kind.GRAPH, Kind.DERIVED) for item in graph.nodes):
        return None
    if max(prod(kind.shape) for kind in graph.types) <= slice_elements:
        return None
    return _cut(graph, slice_elements)


@lru_cache(maxsize=64)
def _cut(graph: Graph, slice_elements: int) -> Slicing | None:
    try:
        axes = infer_axes(graph)
    except UnsupportedError:
        return None  # an op that mixes indices of unknown axes: evaluated whole
    axis = _best_axis(graph, axes)
    if axis is None:
        return None
    largest = max(prod(kind.shape) for value, kind in enumerate(graph.types) if axis in axes.of(value))
    size, parts = axes.sizes[axis], min(axes.sizes[axis], ceil(largest / slice_elements))
    bounds = [size * i // parts for i in range(parts + 1)]
    inputs = [values[0] for item, values in graph.numbered() if item.op == "input"]
    pieces = []
    for start, stop in pairwise(bounds):
        sizes = [stop - start if other == axis else extent for other, extent in enumerate(axes.sizes)]
        windows = []
        for value in inputs:
            dim = _dim_led_by(axes, axis, value)
            rest = 1 if dim is None else graph.types[value].shape[dim] // size
            windows.append(None if dim is None else (dim, start * rest, stop * rest))
        pieces.append(Slice(resize(graph, axes, sizes), tuple(windows)))
    dims = [_dim_led_by(axes, axis, item.operands[0]) for item in graph.outputs]
    return Slicing(tuple(pieces), tuple(dim for dim in dims if dim is not None))


def _best_axis(graph: Graph, axes: Axes) -> int | None:
    """The longest axis of the largest value along which inputs and outputs can be cut."""
    largest = max(range(len(graph.types)), key=lambda value: prod(graph.types[value].shape))
    inputs = [values[0] for item, values in graph.numbered() if item.op == "input"]
    outputs = [item.operands[0] for item in graph.outputs]
    fitting = [
        axis
        for axis in axes.of(largest) - axes.reduced
        if all(_dim_led_by(axes, axis, value) is not None for value in outputs)
        and all(_dim_led_by(axes, axis, value) is not None for value in inputs if axis in axes.of(value))
    ]
    return max(fitting, key=lambda axis: axes.sizes[axis], default=None)


def _dim_led_by(axes: Axes, axis: int, value: int) -> int | None:
    """The dim of `value` in which `axis` is the slowest part."""
    return next((dim for dim, parts in enumerate(axes.dims[value]) if parts[:1] == (axis,)), None)
