"""Values of a kernel graph that alias the memory of another: reshapes, transposes, broadcasts, slices, rows, joined operands.

A kernel reads such a value at the address of what it shows, with other strides and from an offset; nothing is launched or
copied for it. Of a gather, such as the weights of chosen experts, it reads the index of the row first. A kernel whose results
are concatenated writes them at their places in the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.library import ROW_READS
from mirage_eg.ir.op.moves import JOINS, MOVES, RESHAPES, TRANSPOSES, VIEWS, swaps_matrices
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import SizeExpression, most
from mirage_eg.ir.weights import prepared_values
from mirage_eg.ir.windows import OF_IMAGES


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows that a gather takes: the value with their indices, and how it is read along the dims of a view.

    `step`: the distance of neighbouring rows in elements of the base; `extent`: the number of rows.
    """

    index: int
    strides: Shape
    step: int
    extent: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The value whose memory another one shows, which is no view itself; strides and offset in elements."""

    base: int
    strides: Shape
    offset: int = 0
    rows: ChosenRows | None = None

    @property
    def read(self) -> tuple[int, ...]:
        """The values that are read with it."""
        return (self.base,) if self.rows is None else (self.base, self.rows.index)


def views_of(
    graph: Graph, strides: Sequence[Shape], fixed: frozenset[int], copied: frozenset[int], images: frozenset[int]
) -> dict[int, View]:
    """The views that generated kernels and other views alone read. `strides` are those of all values, the `fixed`
    ones may be no views; generated kernels write the concatenations `copied`, and library calls give `images` their strides."""
    chosen = gathers_of_rows(graph)
    source_of = {
        values[0]: item.operands[0] for item, values in graph.numbered() if item.op in VIEWS or (values and values[0] in chosen)
    }
    candidates: dict[int, View] = {}
    for item, values in graph.numbered():
        if not values or values[0] not in source_of or values[0] in fixed:
            continue
        operand = item.operands[0]
        if graph.node_of[operand].op in OF_IMAGES and operand not in images and not MOVES[item.op].omits:
            continue  # the library may give it channels last, and then the view is in order
        if operand not in candidates and operand in source_of:
            continue  # the library copies this view
        seen = candidates.get(operand, View(operand, strides[operand]))
        shown = (
            _rows_of(graph, item, seen, candidates.get(item.operands[1]), strides)
            if item.op in ROW_READS
            else _view_of(graph, item, seen)
        )
        if shown is not None:
            candidates[values[0]] = shown
    while True:  # the library copies a view with another reader, and its bases
        views = {
            value: view
            for value, view in candidates.items()
            if graph.readers[value]
            and all(
                item.op == "block"
                or (
                    values
                    and (
                        _shows(item, value, values[0], candidates)
                        or (values[0] in copied and (view.rows is None or item.op in JOINS))
                    )
                )
                for item, values in map(graph.numbered().__getitem__, graph.readers[value])
            )
        }
        if len(views) == len(candidates):
            return views
        kept = images | views.keys()  # an image that the library reads stays in the memory of what it reshapes
        with_base = {value for value in views if source_of[value] in kept or source_of[value] not in source_of}
        candidates = {value: view for value, view in views.items() if value in with_base}


_ROW = 64  # bytes: shorter rows are gathered once, not by each of their readers


def gathers_of_rows(graph: Graph) -> frozenset[int]:
    """The values that are gathered in long rows and not once for all calls: kernels may read them where they are."""
    prepared = prepared_values(graph)
    return frozenset(
        values[0]
        for item, values in graph.numbered()
        if item.op in ROW_READS and values[0] not in prepared and _row_bytes(graph, item) >= _ROW
    )


def _row_bytes(graph: Graph, item: Node) -> int:
    kind = graph.types[item.operands[0]]
    return most(prod(kind.shape[item["dim"] + 1 :])) * kind.dtype.itemsize


def _rows_of(graph: Graph, item: Node, seen: View, index: View | None, strides: Sequence[Shape]) -> View | None:
    """The view that a gather shows of its operand's memory; its index may be a view. None for a gather of a gather."""
    source, by = item.operands
    if index is None or index.rows is not None:
        index = View(by, strides[by])
    if seen.rows is not None:
        return None
    dim, extent = item["dim"], graph.types[source].shape[item["dim"]]
    before, after = seen.strides[:dim], seen.strides[dim + 1 :]
    along = (*(0 for _ in before), *index.strides, *(0 for _ in after))
    rows = ChosenRows(index.base, along, seen.strides[dim], extent, index.offset)
    return View(seen.base, (*before, *(0 for _ in index.strides), *after), seen.offset, rows)


def _view_of(graph: Graph, item: Node, seen: View) -> View | None:
    """The view that a move shows of its operand's memory; the index of a gather moves with the dims that it varies along."""
    shape = graph.types[item.operands[0]].shape
    shown = shown_at(item, shape, seen.strides)
    if shown is None:
        return None
    view, rows = View(seen.base, shown[0], seen.offset + shown[1]), seen.rows
    if rows is None:
        return view
    where = shown_at(item, shape, rows.strides)
    return None if where is None else replace(view, rows=replace(rows, strides=where[0], offset=rows.offset + where[1]))


def _shows(item: Node, value: int, result: int, views: Mapping[int, View]) -> bool:
    """Whether a reader of a value is a view that shows it, or reads its rows by it."""
    if result not in views or item.op not in ROW_READS or item.operands[1] != value:
        return result in views
    rows = views[result].rows
    return rows is not None and rows.index == views[value].base


def transposed_operands(graph: Graph) -> frozenset[int]:
    """The positions of transposes of the last two dims that products of the library alone read: it takes either order."""
    return frozenset(
        position
        for position, (item, values) in enumerate(graph.numbered())
        if item.op in TRANSPOSES
        and swaps_matrices(item["permutation"])
        and {graph.nodes[reader].kind for reader in graph.readers[values[0]]} == {Kind.MATMUL}
    )


def joined_values(graph: Graph, strides: Sequence[Shape], fixed: frozenset[int]) -> dict[int, View]:
    """The values that kernels write at their places in a concatenation, and the reshapes between; their bases are the results.

    Each of them is written by one kernel and for this reader alone (and for kernels). The other operands are copied to theirs.
    """
    joined: dict[int, View] = {}
    for item, values in graph.numbered():
        if item.op not in JOINS or len(set(item.operands)) < len(item.operands) or fixed.intersection(values):
            continue
        offset, stride = 0, strides[values[0]][item["dim"]]
        for operand in item.operands:
            views = _written_at(graph, operand, View(values[0], strides[values[0]], offset))
            offset += graph.types[operand].shape[item["dim"]] * stride
            readers = [[reader for reader in graph.readers[value] if graph.nodes[reader].op != "block"] for value in views]
            own = fixed.isdisjoint(views) and all(len(its) == 1 for its in readers)
            is_written = any(graph.node_of[value].op == "block" for value in views)
            if own and is_written and len({graph.types[value].dtype for value in (*views, *values)}) == 1:
                joined |= views
    return joined


def _written_at(graph: Graph, value: int, view: View) -> dict[int, View]:
    """The views of a value and of the values that it reshapes, if it is at a place in another one's memory."""
    behind = strides_behind(graph, value, view.strides)
    return {source: View(view.base, strides, view.offset) for source, strides in behind.items()}


def strides_behind(graph: Graph, value: int, strides: Shape) -> dict[int, Shape]:
    """The strides of a value, and of each value behind its chain of reshapes that shares its memory."""
    found = {value: strides}
    while (maker := graph.node_of[value]).op in RESHAPES:
        [source] = maker.operands
        seen = reshaped_strides(graph.types[value].shape, found[value], graph.types[source].shape)
        if seen is None:
            break
        found[source], value = seen, source
    return found


def shown_at(item: Node, shape: Shape, strides: Shape) -> tuple[Shape, int] | None:
    """Strides and offset of a view of a tensor of this shape and these strides, in elements; None if it needs a copy."""
    op, attributes = MOVES[item.op], item.mapping
    if op.in_order and not op.repeats and not op.omits:
        reshaped = reshaped_strides(shape, strides, op.shape([shape], attributes))
        return None if reshaped is None else (reshaped, 0)
    [piece] = op.index([shape], attributes)
    shown, offset = [0] * len(piece.box), 0
    for group in piece.groups:
        if len(group.digits) > 1:
            return None
        [(source, _)] = group.digits
        assert source is not None, "an element that is repeated within a dim is no view"
        offset += strides[source] * group.start
        for dim, stride in group.terms:
            shown[dim] += strides[source] * stride
    return tuple(shown), offset


def runs_in_memory(shape: Shape, strides: Sequence[int]) -> list[tuple[int, int]]:
    """Extents and strides, slowest first, without dims of one element; dims that lie in memory as one are one."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1 and not isinstance(extent, SizeExpression):
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


def reshaped_strides(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """The strides under which a strided tensor has another shape, or None if it must be copied."""
    runs = runs_in_memory(shape, strides)
    strides_of_dims: list[int] = []
    left, step = 1, 1  # of the current run: elements left, and the stride of its last dim
    for extent in reversed(wanted):
        if left == 1 and runs:
            left, step = runs.pop()
        if left % extent:
            return None
        strides_of_dims.append(step)
        step *= extent
        left //= extent
    return tuple(reversed(strides_of_dims))
