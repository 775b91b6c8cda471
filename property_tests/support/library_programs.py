"""Programs with library ops, and what they mean on NumPy arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph

Write = Callable[[KernelGraph, Sequence[Tensor]], Tensor | tuple[Tensor, ...]]
Meaning = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LibraryProgram:
    """A program: the shapes and types of its inputs, its ops, and its function on arrays."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    write: Write
    meaning: Meaning

    def graph(self, dtype: str = "float32") -> Graph:
        """The program; its inputs without a type of their own have this one."""
        graph = new_kernel_graph()
        tensors = [graph.new_input(shape, kind or dtype, name=f"x{i}") for i, (shape, kind) in enumerate(self.inputs)]
        written = self.write(graph, tensors)
        for output in written if isinstance(written, tuple) else (written,):
            graph.mark_output(output)
        return graph.graph()


def _written(x: Any, places: Any, values: Any, dim: int) -> Any:
    result = x.copy()
    result[(slice(None),) * dim + (places,)] = values
    return result


def _scattered(x: Any, places: Any, values: Any, dim: int) -> Any:
    result = x.copy()
    np.put_along_axis(result, places.astype(np.int64), values, dim)
    return result


def _ordered(x: Any, count: int | None, dim: int, descending: bool) -> tuple[Any, Any]:
    places = np.argsort(-x if descending else x, axis=dim, kind="stable").take(np.arange(count or x.shape[dim]), axis=dim)
    return np.take_along_axis(x, places, dim), places


Numbers = tuple[int, ...]


def _windows(x: Any, window: Numbers, strides: Numbers = (), dilations: Numbers = ()) -> Any:
    """The elements of each window: [N, C, *E′, *window]."""
    ones = (1,) * len(window)
    strides, dilations = strides or ones, dilations or ones
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, window, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    return views[(..., *(slice(None, None, step) for step in (*strides, *dilations)))]


def _framed(x: Any, pads: Numbers, value: float = 0.0) -> Any:
    """With pads before and after each of the last dims."""
    sides = zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True)
    return np.pad(x, ((0, 0), (0, 0), *sides), constant_values=value)


def _convolved(x: Any, w: Any, groups: int = 1, pads: Numbers = (), strides: Numbers = (), dilations: Numbers = ()) -> Any:
    """Each group of channels by itself."""
    dims = w.ndim - 2
    views = _windows(_framed(x, pads or (0,) * 2 * dims), w.shape[2:], strides, dilations)
    parts, taps = zip(np.split(views, groups, 1), np.split(w, groups, 0), strict=True), "ijk"[:dims]
    places = "xyz"[:dims]
    return np.concatenate([np.einsum(f"nc{places}{taps},oc{taps}->no{places}", part, own) for part, own in parts], 1)


def _transposed(x: Any, w: Any, strides: Numbers, dilations: Numbers, groups: int, taken: Sequence[slice]) -> Any:
    """The sum over all elements of their multiples of the weight; of it what the slices say."""
    spans = list(zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True))
    whole = np.zeros((x.shape[0], w.shape[1] * groups, *((n - 1) * s + (k - 1) * d + 9 for n, k, s, d in spans)), x.dtype)
    for number, (part, own) in enumerate(zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)):
        mine = whole[:, number * w.shape[1] : (number + 1) * w.shape[1]]
        for place in np.ndindex(*x.shape[2:]):
            ends = zip(place, spans, strict=True)
            at = tuple(slice(p * s, p * s + (k - 1) * d + 1, d) for p, (_, k, s, d) in ends)
            mine[(..., *at)] += np.einsum("nc,co...->no...", part[(..., *place)], own)
    return whole[(..., *taken)]


def _averaged(x: Any, window: Numbers, strides: Numbers, pads: Numbers) -> Any:
    """Without the padding in the count."""
    views = _windows(_framed(x, pads, np.nan), window, strides)
    return np.nanmean(views, axis=tuple(range(-len(window), 0)))


LIBRARY_PROGRAMS: Mapping[str, LibraryProgram] = {
    "embedding": LibraryProgram(
        (((11, 8), ""), ((2, 3), "int64")), lambda g, x: g.gather(x[0], x[1]), lambda table, i: table[i]
    ),
    "index_select": LibraryProgram(
        (((4, 6, 8), ""), ((5,), "int32")), lambda g, x: g.gather(x[0], x[1], dim=1), lambda table, i: np.take(table, i, axis=1)
    ),
    "gather of one": LibraryProgram(
        (((4, 6), ""), ((), "int64")), lambda g, x: g.gather(x[0], x[1], dim=1), lambda table, i: np.take(table, i, axis=1)
    ),
    "take_along_dim": LibraryProgram(
        (((4, 6, 2), ""), ((4, 3, 2), "int64")),
        lambda g, x: g.take_along_dim(x[0], x[1], dim=1),
        lambda x, i: np.take_along_axis(x, i, 1),
    ),
    "take": LibraryProgram(
        (((2, 7, 3), ""),),
        lambda g, x: g.exp(g.take(x[0], (5, 3, 1, 2, 2, 2, 0, 6), dim=1)),
        lambda x: np.exp(np.take(x, (5, 3, 1, 2, 2, 2, 0, 6), axis=1)),
    ),
    "gather, then a product": LibraryProgram(
        (((16, 32), ""), ((8,), "int64"), ((32, 16), "")),
        lambda g, x: g.silu(g.gather(x[0], x[1]) @ x[2]),
        lambda table, i, w: (lambda y: y / (1 + np.exp(-y)))(table[i] @ w),
    ),
    "cumsum": LibraryProgram((((3, 7), ""),), lambda g, x: g.cumsum(x[0], dim=-1), lambda x: np.cumsum(x, axis=1)),
    "cumsum of indicators": LibraryProgram(
        (((3, 7), "bool"),), lambda g, x: g.cumsum(x[0], dim=0), lambda x: np.cumsum(x, axis=0, dtype=np.int64)
    ),
    "sort": LibraryProgram((((3, 7), ""),), lambda g, x: g.sort(x[0], dim=0), lambda x: _ordered(x, None, 0, False)),
    "topk": LibraryProgram((((3, 7), ""),), lambda g, x: g.topk(x[0], 2), lambda x: _ordered(x, 2, 1, True)),
    "the rows of the largest": LibraryProgram(
        (((5, 4), ""), ((9,), ""), ((9, 4), "")),
        lambda g, x: g.gather(x[2], g.topk(x[1], 5, largest=False)[1]) * x[0],
        lambda x, scores, table: table[np.argsort(scores, kind="stable")[:5]] * x,
    ),
    "index_write": LibraryProgram(
        (((4, 9, 2), ""), ((1,), "int64"), ((4, 1, 2), "")),
        lambda g, x: g.index_write(x[0], x[1], x[2], dim=1),
        lambda x, i, values: _written(x, i, values, 1),
    ),
    "scatter": LibraryProgram(
        (((4, 6), ""), ((4, 1), "int64"), ((4, 1), "")),
        lambda g, x: g.scatter(x[0], x[1], x[2], dim=1),
        lambda x, i, values: _scattered(x, i, values, 1),
    ),
    "indices computed": LibraryProgram(
        (((12, 4), ""), ((3,), "int64")), lambda g, x: g.gather(x[0], x[1] * 2 + 1), lambda table, i: table[(2 * i + 1) % 12]
    ),
    "a causal mask": LibraryProgram(
        (((5, 5), ""),),
        lambda g, x: g.where(g.less_equal(g.reshape(g.iota(5), (1, 5)), g.reshape(g.iota(5), (5, 1))), x[0], 0),
        lambda x: np.tril(x),
    ),
    "conv2d": LibraryProgram(
        (((2, 3, 6, 5), ""), ((4, 3, 3, 2), "")),
        lambda g, x: g.conv2d(x[0], x[1], strides=(2, 1), pads=(1, 0, 2, 1), dilations=(1, 2)),
        lambda x, w: _convolved(x, w, strides=(2, 1), pads=(1, 0, 2, 1), dilations=(1, 2)),
    ),
    "conv2d of groups, then relu": LibraryProgram(
        (((2, 4, 5, 5), ""), ((6, 2, 3, 3), ""), ((6, 1, 1), "")),
        lambda g, x: g.relu(g.conv2d(x[0], x[1], pads=1, groups=2) + x[2]) * 2,
        lambda x, w, b: 2 * np.maximum(_convolved(x, w, 2, pads=(1, 1, 1, 1)) + b, 0),
    ),
    "conv2d of 1x1": LibraryProgram(
        (((2, 16, 4, 4), ""), ((32, 16, 1, 1), "")),
        lambda g, x: g.relu(g.conv2d(x[0], x[1])),
        lambda x, w: np.maximum(_convolved(x, w), 0),
    ),
    "conv2d, batch_norm": LibraryProgram(
        (((2, 3, 4, 4), ""), ((4, 3, 3, 3), ""), ((4,), ""), ((4,), ""), ((4,), "")),
        lambda g, x: g.batch_norm(g.conv2d(x[0], x[1]), x[2], g.square(x[3]), x[4], x[2], eps=1),
        lambda x, w, m, s, b: (
            (_convolved(x, w) - m[:, None, None]) * (b / np.sqrt(s * s + 1))[:, None, None] + m[:, None, None]
        ),
    ),
    "conv3d": LibraryProgram(
        (((1, 2, 4, 5, 3), ""), ((4, 1, 2, 3, 2), "")),
        lambda g, x: g.relu(g.conv3d(x[0], x[1], strides=(1, 2, 1), pads=(1, 0, 1, 0, 1, 0), dilations=(2, 1, 1), groups=2)),
        lambda x, w: np.maximum(_convolved(x, w, 2, (1, 0, 1, 0, 1, 0), (1, 2, 1), (2, 1, 1)), 0),
    ),
    "conv_transpose2d": LibraryProgram(
        (((2, 4, 3, 2), ""), ((4, 3, 2, 3), "")),
        lambda g, x: g.conv_transpose2d(x[0], x[1], (2, 3), pads=(1, 0, 0, 1), output_pads=(0, 1), dilations=(1, 2), groups=2),
        lambda x, w: _transposed(x, w, (2, 3), (1, 2), 2, (slice(1, 6), slice(0, 8))),
    ),
    "conv_transpose3d, then relu": LibraryProgram(
        (((1, 2, 2, 3, 2), ""), ((2, 3, 3, 2, 1), "")),
        lambda g, x: g.relu(g.conv_transpose3d(x[0], x[1], strides=(2, 1, 2), pads=1, output_pads=(1, 0, 0), dilations=2)),
        lambda x, w: np.maximum(_transposed(x, w, (2, 1, 2), (2, 2, 2), 1, (slice(1, 7), slice(1, 4), slice(1, 2))), 0),
    ),
    "max_pool3d": LibraryProgram(
        (((1, 2, 5, 4, 3), ""),),
        lambda g, x: g.max_pool3d(x[0], (3, 2, 1), strides=(2, 1, 1), pads=(1, 0, 0, 0, 1, 0)),
        lambda x: _windows(_framed(x, (1, 0, 0, 0, 1, 0), -np.inf), (3, 2, 1), (2, 1, 1)).max((-1, -2, -3)),
    ),
    "avg_pool3d without its padding": LibraryProgram(
        (((1, 2, 5, 4, 3), ""),),
        lambda g, x: g.avg_pool3d(x[0], 2, strides=(2, 1, 1), pads=(1, 0, 0, 0, 1, 1), count_include_pad=False),
        lambda x: _averaged(x, (2, 2, 2), (2, 1, 1), (1, 0, 0, 0, 1, 1)),
    ),
    "max_pool2d": LibraryProgram(
        (((2, 3, 7, 6), ""),),
        lambda g, x: g.max_pool2d(x[0], 3, strides=2, pads=1),
        lambda x: _windows(_framed(x, (1, 1, 1, 1), -np.inf), (3, 3), (2, 2)).max((-1, -2)),
    ),
    "max_pool2d with dilations": LibraryProgram(
        (((2, 1, 7, 6), ""),),
        lambda g, x: g.max_pool2d(x[0], (2, 3), strides=1, pads=(0, 2, 1, 0), dilations=(2, 1)),
        lambda x: _windows(_framed(x, (0, 2, 1, 0), -np.inf), (2, 3), (1, 1), (2, 1)).max((-1, -2)),
    ),
    "avg_pool2d": LibraryProgram(
        (((2, 3, 7, 6), ""),),
        lambda g, x: g.avg_pool2d(x[0], (3, 2), strides=2, pads=1),
        lambda x: _windows(_framed(x, (1, 1, 1, 1)), (3, 2), (2, 2)).mean((-1, -2)),
    ),
    "avg_pool2d without its padding": LibraryProgram(
        (((2, 3, 7, 6), ""),),
        lambda g, x: g.avg_pool2d(x[0], 3, strides=(2, 1), pads=(0, 1, 2, 1), count_include_pad=False),
        lambda x: _averaged(x, (3, 3), (2, 1), (0, 1, 2, 1)),
    ),
    "pad": LibraryProgram(
        (((3, 4), ""),),
        lambda g, x: g.exp(g.pad(x[0], ((1, 0), (0, 2)), 0.5)),
        lambda x: np.exp(np.pad(x, ((1, 0), (0, 2)), constant_values=0.5)),
    ),
    "pad of integers": LibraryProgram(
        (((3, 4), "int64"),),
        lambda g, x: g.pad(x[0], ((1, 0), (0, 2)), 7),
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=7),
    ),
    "flip": LibraryProgram((((3, 4, 2), ""),), lambda g, x: g.flip(x[0], (0, -1)) * x[0], lambda x: x[::-1, :, ::-1] * x),
    "constants": LibraryProgram(
        (((4, 4), ""),),
        lambda g, x: g.eye(4, x[0].dtype) * x[0] + g.full((4, 1), 0.5, x[0].dtype) * g.ones((4,), x[0].dtype),
        lambda x: np.eye(4) * x + 0.5,
    ),
    "an enlarged kernel": LibraryProgram(
        (((2, 4, 5, 5), ""), ((4, 4, 1, 3), "")),
        lambda g, x: g.conv2d(x[0], g.enlarge(x[1], (3, 5)) + g.delta_kernel(4, (3, 5), dtype=x[0].dtype), pads=(1, 2, 1, 2)),
        lambda x, w: _convolved(x, w, pads=(0, 1, 0, 1)) + x,
    ),
    "a scalar": LibraryProgram((((), ""), ((3, 4), "")), lambda g, x: g.exp(x[0]) * x[1], lambda s, x: np.exp(s) * x),
    "a cast of integers": LibraryProgram(
        (((4, 3), ""), ((3,), "int32")), lambda g, x: x[0] * g.cast(x[1], x[0].dtype), lambda x, i: x * i
    ),
}


def arrays_for(graph: Graph, seed: int) -> list[Any]:
    """Random arrays of the program's types: valid indices, distinct numbers."""
    from mirage_eg.ir.whole_inputs import whole_inputs

    generator, whole = np.random.default_rng(seed), whole_inputs(graph)
    return [
        generator.integers(whole[place], size=kind.shape).astype(str(kind.dtype))
        if place in whole
        else generator.standard_normal(kind.shape).astype(str(kind.dtype))
        for place, kind in enumerate(graph.input_types)
    ]
