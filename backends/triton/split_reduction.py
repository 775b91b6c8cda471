"""Exponentials whose sums leave a kernel for the next one: how they stay safe (docs/explanation/safe_exponentials.md).

The kernel that exponentiates stores its partial results and the row maximum by which it shifted them. The reading kernel loads
both and multiplies by exp(maximum). This is an ordinary exponential of the reading kernel, shifted by the maximum over all
parts. So nothing overflows unless the program does, and one analysis (`safe_exp`) serves both kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_eg.backends.triton.block_order import prepared
from mirage_eg.backends.triton.safe_exp import NO_VALUES, SafeExponential, safe_exponentials
from mirage_eg.backends.triton.tiles import Tile, real_dims
from mirage_eg.backends.triton.writer import Writer
from mirage_eg.ir import write
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import NEW_DIM, REPLICATED, node
from mirage_eg.ir.op.elementwise import EXPONENTIALS
from mirage_eg.ir.shapes import Shape


@dataclass(frozen=True, slots=True)
class ExportedMaximum:
    """A row maximum that a kernel stores for the outputs that were shifted by it.

    `degrees`: by output position, the power of exp(maximum) that is missing there. `tile` and `shape` are those of the first of
    these outputs with 1 in each dim along which the maximum does not vary; `shapes`, of each output, differ in dims of 1.
    """

    exponential: int
    degrees: Mapping[int, int]
    shapes: Mapping[int, Shape]
    tile: Shape
    shape: Shape
    omap: tuple[int, ...]
    kept: tuple[tuple[int, int], ...]  # dim of the tile, dim of the exponential
    dtype: DType


@dataclass(frozen=True, slots=True)
class RowMaximum:
    """Row maxima in memory that belong to partial results: the value of the kernel graph, its shape, the power (`degree`).

    `seen`: its shape with the dims of the partial results, which differs in dims of 1.
    """

    value: int
    shape: Shape
    dtype: DType
    degree: int
    seen: Shape


def add_row_maxima(
    row_maxima: dict[int, list[RowMaximum]], export: ExportedMaximum, values: Sequence[int], maximum: int
) -> None:
    """Add the maxima of the outputs that a kernel stores them for, by the outputs' values; `maximum` is theirs."""
    for position, degree in export.degrees.items():
        found = RowMaximum(maximum, export.shape, export.dtype, degree, export.shapes[position])
        row_maxima.setdefault(values[position], []).append(found)


def find_exported_maxima(block: Graph, exportable: frozenset[int], maxima: frozenset[int] = NO_VALUES) -> list[ExportedMaximum]:
    """The row maxima that a block graph must store if only generated kernels read the outputs at the positions `exportable`.

    `maxima`: the positions of the inputs that are maxima of another kernel.
    """
    graph = prepared(block)
    while exportable:
        maxima_by_key: dict[tuple[object, ...], ExportedMaximum] = {}
        refused: set[int] = set()
        for exponential, safe in safe_exponentials(graph, exportable, maxima).items():
            for position, degree in safe.exported.items():
                export = _export(graph, exponential, safe, position, degree)
                if export is None:
                    refused.add(position)
                    continue
                key = _in_memory(export)
                if key in maxima_by_key:
                    first = maxima_by_key[key]
                    shapes = {**first.shapes, position: export.shape}
                    export = replace(first, degrees={**first.degrees, position: degree}, shapes=shapes)
                maxima_by_key[key] = export
        if not refused:
            return list(maxima_by_key.values())
        exportable -= refused
    return []


def _in_memory(export: ExportedMaximum) -> tuple[object, ...]:
    """What decides the memory of maxima: outputs that differ in dims of one element have the same."""
    lead = len(export.shape) - len(export.tile)
    real = [dim for dim, extent in enumerate(export.shape[lead:]) if extent > 1]
    tile, shape = tuple(export.tile[dim] for dim in real), tuple(extent for extent in export.shape if extent > 1)
    omap = tuple(real.index(target) if target in real else min(target, REPLICATED) for target in export.omap)
    kept = tuple((real.index(dim) if dim in real else dim, source) for dim, source in export.kept)
    return export.exponential, tile, shape, omap, kept, export.dtype


def _export(graph: Graph, exponential: int, safe: SafeExponential, position: int, degree: int) -> ExportedMaximum | None:
    """The maximum of one output, or None if blocks that store to the same elements have different maxima."""
    item = graph.outputs[position]
    [value] = item.operands
    stored = graph.output_types[position]
    if stored.dtype not in (DType.float32, DType.float64):
        return None
    origin, varies = safe.origins[value], graph.grid_dims[exponential]
    kept = {dim: source for dim, source in origin.items() if source in safe.kept}
    lead = item["omap"].count(NEW_DIM)
    tile = [extent if dim in kept else 1 for dim, extent in enumerate(graph.types[value].shape)]
    shape = [stored.shape[lead + dim] if dim in kept else 1 for dim in range(len(tile))]
    omap = list(item["omap"])
    for grid_dim, target in enumerate(item["omap"]):
        if target < 0 or graph.grid[grid_dim] == 1:
            continue
        if grid_dim not in varies and target in kept:
            return None
        if grid_dim in varies and target not in kept and graph.types[value].shape[target] > 1:
            return None
        if grid_dim not in varies:
            omap[grid_dim] = REPLICATED
        elif target not in kept:
            shape[target] *= graph.grid[grid_dim]
    new = [graph.grid[grid_dim] for grid_dim, target in enumerate(item["omap"]) if target == NEW_DIM]
    whole, dims = (*new, *shape), tuple(sorted(kept.items()))
    return ExportedMaximum(
        exponential, {position: degree}, {position: whole}, tuple(tile), whole, tuple(omap), dims, stored.dtype
    )


def row_maximum_tile(writer: Writer, export: ExportedMaximum) -> Tile:
    """The maximum as a tile, once the body of the kernel is written."""
    padded = [1] * len(export.tile)
    ends = {}
    exponential = writer.tiles[export.exponential]
    for dim, source in export.kept:
        padded[dim] = exponential.padded[source]
        if source in exponential.ends:
            ends[dim] = exponential.ends[source]
    dtype = writer.compute_dtype(export.exponential)
    return Tile(writer.safe[export.exponential].row_maximum, dtype, export.tile, tuple(padded), ends=ends)


def with_row_maxima(
    block: Graph, operands: Sequence[int], row_maxima: Mapping[int, Sequence[RowMaximum]]
) -> tuple[Graph, tuple[int, ...]]:
    """A block graph that multiplies partial results by the exponentials of their row maxima and by their scales.

    `operands` are its operands in the kernel graph, `row_maxima` the maxima and scales of some of these. Returns the graph and
    its operands.
    """
    if row_maxima.keys().isdisjoint(operands):
        return block, tuple(operands)
    copy = GraphCopy(block)
    read: list[int] = []
    weights: dict[tuple[object, ...], int] = {}
    given = iter(operands)
    items = [(item, values, next(given) if item.op == "input" else -1) for item, values in block.numbered()]
    if _exponentiates(block):  # its own exponentials may be shifted by the maxima that it reads: these come first
        items.sort(key=lambda entry: entry[2] not in row_maxima)
    for item, values, operand in items:
        if item.op != "input":
            copy.copy(item, values)
            continue
        read.append(operand)
        result = copy.append(item)
        for row_maximum in row_maxima.get(operand, ()):
            stored = real_dims(row_maximum.shape)
            place = dict(zip(real_dims(row_maximum.seen), stored, strict=True))  # of a dim of the partial results in memory
            layout: dict[str, Any] = {
                "imap": tuple(place.get(target, REPLICATED) for target in item["imap"]),
                "fmap": place.get(item.get("fmap", REPLICATED), REPLICATED),
            }
            if item.get("tile") is not None:  # its last part may be short
                tile = {place[dim]: item["tile"][dim] for dim in place}
                layout["tile"] = tuple(tile.get(dim, 1) for dim in range(len(row_maximum.shape)))
            key = (row_maximum.value, *layout.values())
            if key not in weights:
                read.append(row_maximum.value)
                loaded = copy.append(node("input", shape=row_maximum.shape, dtype=str(row_maximum.dtype), **layout))
                weights[key] = copy.append(node("exp", loaded))
            weight = weights[key]
            if row_maximum.seen != row_maximum.shape:
                shape = tuple(extent if dim in place else 1 for dim, extent in enumerate(block.types[values[0]].shape))
                weight = copy.append(write.reshape(weight, shape))
            for _ in range(row_maximum.degree):
                result = copy.append(write.mul(result, weight))
        copy.position[values[0]] = result
    return copy.graph(), tuple(read)


def _exponentiates(block: Graph) -> bool:
    return any(item.op in EXPONENTIALS or (item.op == "thread" and _exponentiates(item["graph"])) for item in block.nodes)


def maxima_of(operands: Sequence[int], row_maxima: Mapping[int, Sequence[RowMaximum]]) -> frozenset[int]:
    """The positions of the operands of a block graph that are maxima."""
    maxima = {row_maximum.value for entries in row_maxima.values() for row_maximum in entries}
    return frozenset(position for position, value in enumerate(operands) if value in maxima)
