"""A ragged block graph as regular ones: one on the blocks and iterations of full parts, one on those of the rest. Trusted.

If `bounds` contain only full parts of a cut, or only its last part, each tile has one extent: a regular block graph on parts of
the inputs computes the same values as the ragged one there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mirage_eg.backends.evaluator.algebra import Algebra
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node
from mirage_eg.ir.ragged import LOOP, Cut
from mirage_eg.ir.shapes import Shape

V = TypeVar("V")
Bounds = tuple[tuple[int, int], ...]  # of each grid dim, then of the loop: start and stop
Index = np.ndarray[Any, np.dtype[np.int64]]


def all_of(graph: Graph) -> Bounds:
    """All blocks and iterations."""
    return (*((0, extent) for extent in graph.grid), (0, graph.loop))


def without_empty_iterations(graph: Graph, bounds: Bounds) -> Bounds:
    """Bounds of blocks of equal extents, without the iterations after the last part of a dim that the grid and the loop cut."""
    for cut in (cut for cuts in graph.cuts.values() for cut in cuts if cut):
        if _has_last(graph, cut, bounds):
            stop = min([bounds[LOOP][1], *(last + 1 for place, last in _last(graph, cut) if place == LOOP)])
            bounds = (*bounds[:LOOP], (bounds[LOOP][0], stop))
    return bounds


def divided(graph: Graph, bounds: Bounds, *, loop: bool) -> tuple[int, Bounds, Bounds] | None:
    """A grid dim (LOOP if `loop`), bounds without its last coordinate and with it alone; None if no extents are mixed."""
    for cut in (cut for cuts in graph.cuts.values() for cut in cuts if cut):
        for place, _ in cut.steps:
            start, stop = bounds[place]
            if (place == LOOP) is loop and stop - start > 1 and _has_last(graph, cut, bounds):
                at = place % len(bounds)
                full, last = ((*bounds[:at], pair, *bounds[at + 1 :]) for pair in ((start, stop - 1), (stop - 1, stop)))
                return place, full, last
    return None


def regular_part(graph: Graph, bounds: Bounds) -> Graph:
    """The regular block graph on bounds without mixed extents."""
    counts = [stop - start for start, stop in bounds]
    nodes = []
    for item, values in graph.numbered():
        attributes = item.mapping
        if item.op == "input":
            attributes.pop("tile", None)
            attributes["shape"] = tuple(len(index) for index in input_indices(graph, item, values[0], bounds))
        elif item.op == "thread":
            inner: Graph = item["graph"]
            shapes = iter([_extents(graph, operand, bounds) for operand in item.operands])
            taken = [_with_shape(node, next(shapes)) if node.op == "input" else node for node in inner.nodes]
            attributes["graph"] = Graph(tuple(taken), inner.level)
        elif "shape" in attributes:
            attributes["shape"] = _extents(graph, values[0], bounds)
        nodes.append(Node(item.op, item.operands, tuple(attributes.items())))
    return replace(graph, nodes=tuple(nodes), grid=tuple(counts[:-1]), loop=counts[-1])


def input_indices(graph: Graph, item: Node, value: int, bounds: Bounds) -> list[Index]:
    """For each dim of an input the indices that lie within bounds."""
    maps = (*item["imap"], item.get("fmap", REPLICATED))
    pairs = zip(item["shape"], graph.types[value].shape, strict=True)
    return [_indices(graph, extent, part, _mapped(maps, dim), bounds) for dim, (extent, part) in enumerate(pairs)]


def output_indices(graph: Graph, item: Node, shape: Shape, bounds: Bounds) -> list[Index]:
    """For each dim of an output of this shape the indices that lie within bounds."""
    maps = (*item["omap"], REPLICATED)
    new = [place for place, target in enumerate(maps) if target < REPLICATED]
    tile = graph.types[item.operands[0]].shape
    places = [*([place] for place in new), *(_mapped(maps, dim) for dim in range(len(tile)))]
    parts = (*(1 for _ in new), *tile)
    return [_indices(graph, *each, bounds) for each in zip(shape, parts, places, strict=True)]


def inputs_within(graph: Graph, bounds: Bounds, inputs: Sequence[V], algebra: Algebra[V], stack: int) -> list[V]:
    """The parts of the inputs within bounds."""
    taken = []
    for item, value, x in zip(graph.inputs, graph.input_values, inputs, strict=True):
        for dim, index in enumerate(input_indices(graph, item, value, bounds), stack):
            x = _at(algebra, x, dim, index)
        taken.append(x)
    return taken


def join_sides(
    graph: Graph,
    item: Node,
    shape: Shape,
    place: int,
    sides: Sequence[Bounds],
    parts: Sequence[V],
    algebra: Algebra[V],
    stack: int,
) -> V:
    """An output of two sides of a grid dim."""
    target = item["omap"][place]
    if target == REPLICATED:
        return parts[0]
    new = item["omap"].count(NEW_DIM)
    dim = item["omap"][:place].count(NEW_DIM) if target == NEW_DIM else new + target
    indices = [output_indices(graph, item, shape, side)[dim] for side in sides]
    return _at(algebra, algebra.join(parts, stack + dim), stack + dim, np.argsort(np.concatenate(indices)))


def _at(algebra: Algebra[V], x: V, dim: int, index: Index) -> V:
    """The elements of x at these indices of a dim."""
    shape = algebra.shape(x)
    if len(index) == shape[dim] and (np.diff(index) == 1).all():
        return x
    return algebra.view(x, (*shape[:dim], len(index), *shape[dim + 1 :]), lambda array: array[(slice(None),) * dim + (index,)])


def _mapped(maps: Sequence[int], dim: int) -> list[int]:
    """The grid dims that map to a dim, then LOOP."""
    return [LOOP if place == len(maps) - 1 else place for place, target in enumerate(maps) if target == dim]


def _indices(graph: Graph, extent: int, part: int, places: Sequence[int], bounds: Bounds) -> Index:
    """The indices of a dim, cut into parts of `part` by these places (the first is slowest), that lie within bounds."""
    indices = np.arange(extent)
    for place in reversed(places):
        count, (start, stop) = (*graph.grid, graph.loop)[place], bounds[place]
        coordinate = indices // part % count
        indices = indices[(start <= coordinate) & (coordinate < stop)]
        part *= count
    return indices


def _has_last(graph: Graph, cut: Cut, bounds: Bounds) -> bool:
    """Whether the bounds contain the last part that is not empty."""
    return all(bounds[place][0] <= last < bounds[place][1] for place, last in _last(graph, cut))


def _last(graph: Graph, cut: Cut) -> list[tuple[int, int]]:
    """The coordinates of the last part that is not empty."""
    start, counts = cut.extent - cut.rest, (*graph.grid, graph.loop)
    return [(place, start // step % counts[place]) for place, step in cut.steps]


def _extents(graph: Graph, value: int, bounds: Bounds) -> Shape:
    """The extents of a tile within bounds."""
    shape = graph.types[value].shape
    cuts = graph.cuts.get(value, (None,) * len(shape))
    return tuple(cut.rest if cut and _has_last(graph, cut, bounds) else extent for extent, cut in zip(shape, cuts, strict=True))


def _with_shape(item: Node, shape: Shape) -> Node:
    return Node(item.op, item.operands, tuple((item.mapping | {"shape": shape}).items()))
