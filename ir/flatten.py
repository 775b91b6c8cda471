"""A µGraph written as one program: every block graph becomes library ops on arrays of all its tiles.

A tile value is an array with leading dims (grid dims …, F), of extent 1 where it does not vary. A loader is a reshape and a
transpose, an accumulator a reduction over F, a saver the inverse of a loader. So axes and expressions are inferred for programs
and µGraphs by the same code. A test compares the values of both graphs.

For axis inference alone, `Flat(for_axes=True)` also has ragged tiles: a tensor is filled up to equal parts before its tiles
are loaded, and cut to its extent after they are stored. Its shapes and axes are right, its values are not.

    lead   number of leading dims: grid dims and F in a block graph, else 0
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any

from mirage_eg.ir import write
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, Node, TensorType, node
from mirage_eg.ir.op.moves import BROADCASTS, JOINS, RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.tile_maps import load_map, store_map


def flatten(graph: Graph) -> Graph:
    """The same function without block and thread graphs, in primitive ops.

    Raises UnsupportedError: parts of unequal extents.
    """
    flat = Flat()
    for item in graph.inputs:
        flat.apply("input", **item.mapping)
    outputs = append(flat, graph, range(len(graph.inputs)))
    for value in outputs:
        flat.apply("output", value)
    return Graph(tuple(flat.nodes))


@dataclass(slots=True)
class Flat:
    """A kernel graph that grows op by op; an op that it already has is not appended again."""

    checker: Checker = field(default_factory=lambda: Checker(Level.KERNEL))
    nodes: list[Node] = field(default_factory=list)
    values: dict[Node, int] = field(default_factory=dict)  # of ops
    bodies: list[tuple[Graph, list[int]]] = field(default_factory=list)
    """The appended graphs in primitive ops, each before the graphs inside it, with the value of each of their values."""
    for_axes: bool = False
    fillings: dict[TensorType, int] = field(default_factory=dict)  # inputs of no graph, joined to the end of a ragged dim
    ties: list[tuple[int, int, int]] = field(default_factory=list)  # two values, and a dim that one grid dim or loop walks

    def apply(self, name: str, /, *operands: int, **attributes: Any) -> int:
        """The value of an op; an output has none and gives -1."""
        return self.add(node(name, *operands, **attributes))

    def add(self, item: Node) -> int:
        """The value of a node."""
        if item in self.values:
            return self.values[item]
        self.nodes.append(item)
        results = self.checker.append(item)
        if results and item.kind is not Kind.BOUNDARY:
            self.values[item] = results[0]
        return results[0] if results else -1

    def shape(self, value: int) -> Shape:
        """Extents of a value."""
        return self.checker.types[value].shape

    def reshape(self, value: int, shape: Shape) -> int:
        """The value under `shape`; itself where it has it."""
        return value if self.shape(value) == shape else self.add(write.reshape(value, shape))

    def transpose(self, value: int, permutation: Sequence[int]) -> int:
        """The value with its dims in another order."""
        if list(permutation) == sorted(permutation):
            return value
        return self.add(write.transpose(value, tuple(permutation)))


def append(flat: Flat, graph: Graph, inputs: Sequence[int]) -> list[int]:
    """The values of the outputs of a kernel graph on values that `flat` already has."""
    return _append(flat, expand(graph), inputs, 0)


def _append(flat: Flat, graph: Graph, inputs: Sequence[int], lead: int) -> list[int]:
    values: list[int] = []
    outputs: list[int] = []
    given = iter(inputs)
    walked: dict[int, int] = {}  # for each leading dim the first tile that varies with it
    flat.bodies.append((graph, values))
    for item in graph.nodes:
        operands = [values[i] for i in item.operands]
        match item.kind:
            case Kind.BOUNDARY if item.op == "output":
                shape = graph.output_types[len(outputs)].shape
                outputs.append(
                    _store(flat, operands[0], shape, item["omap"], graph) if graph.level is Level.BLOCK else operands[0]
                )
            case Kind.BOUNDARY:
                tile = graph.types[len(values)].shape
                values.append(_load(flat, next(given), tile, item, graph) if graph.level is Level.BLOCK else next(given))
                if graph.level is Level.BLOCK and len(values) - 1 not in graph.cuts:
                    extents = enumerate(flat.shape(values[-1])[: len(graph.grid) + 1])
                    varying = [dim for dim, extent in extents if extent > 1]
                    flat.ties += [(walked.setdefault(dim, values[-1]), values[-1], dim) for dim in varying]
            case Kind.GRAPH:
                inner: Graph = item["graph"]
                if inner.cuts and not flat.for_axes:
                    raise UnsupportedError("a block graph with parts of unequal extents: its axes cannot be inferred")
                values += _append(flat, inner, operands, lead if inner.level is Level.THREAD else len(inner.grid) + 1)
            case Kind.ACCUMULATOR:
                values.append(_accumulate(flat, item, operands[0], graph.loop, lead))
            case _:
                values.append(_op(flat, item, operands, lead))
    return outputs


def _op(flat: Flat, item: Node, operands: list[int], lead: int) -> int:
    attributes = item.mapping
    if item.kind is Kind.LIBRARY:  # at the kernel level, where there are no leading dims
        return flat.apply(item.op, *operands, **attributes)
    if len(operands) > 1:
        operands = _aligned(flat, operands, lead)
    if item.op in JOINS and lead:
        operands = _spread(flat, operands, lead)
    shape = flat.shape(operands[0])
    match item.op:
        case op if op in RESHAPES:
            attributes["shape"] = shape[:lead] + attributes["shape"]
        case op if op in BROADCASTS:
            rank = lead + len(attributes["shape"])
            operands = [flat.reshape(operands[0], shape[:lead] + (1,) * (rank - len(shape)) + shape[lead:])]
            attributes["shape"] = shape[:lead] + attributes["shape"]
        case op if op in TRANSPOSES:
            attributes["permutation"] = (*range(lead), *(lead + dim for dim in attributes["permutation"]))
        case _ if "dim" in attributes:
            attributes["dim"] += lead
    return flat.apply(item.op, *operands, **attributes)


def _aligned(flat: Flat, operands: Sequence[int], lead: int) -> list[int]:
    """The operands with extents of 1 put between the leading dims and the tile, up to one rank."""
    shapes = [flat.shape(operand) for operand in operands]
    rank = max(map(len, shapes))
    pairs = zip(operands, shapes, strict=True)
    return [flat.reshape(x, shape[:lead] + (1,) * (rank - len(shape)) + shape[lead:]) for x, shape in pairs]


def _spread(flat: Flat, operands: Sequence[int], lead: int) -> list[int]:
    """The operands with the same leading dims."""
    shapes = [flat.shape(operand) for operand in operands]
    leading = tuple(map(max, zip(*(shape[:lead] for shape in shapes), strict=True)))
    return [
        operand if shape[:lead] == leading else flat.add(write.broadcast(operand, (*leading, *shape[lead:])))
        for operand, shape in zip(operands, shapes, strict=True)
    ]


def _accumulate(flat: Flat, item: Node, x: int, loop: int, lead: int) -> int:
    """Reduce over F; a value that does not vary over the loop counts F times."""
    kind, attributes = OPS[item.op].reduction, item.mapping
    if flat.shape(x)[lead - 1] == loop:
        x = flat.apply(kind, x, dim=lead - 1) if loop > 1 else x
    elif kind == "sum":
        x = flat.apply("scale", x, factor=Fraction(loop))
    if attributes.get("dim") is None:
        return x
    dim = lead + attributes["dim"]
    if (columns := attributes.get("columns")) is None:
        return flat.apply(kind, x, dim=dim)
    # Strided group sum: dim n becomes (n / columns, columns), and the first is summed.
    shape = flat.shape(x)
    x = flat.reshape(x, (*shape[:dim], shape[dim] // columns, columns, *shape[dim + 1 :]))
    return flat.reshape(flat.apply(kind, x, dim=dim), (*shape[:dim], columns, *shape[dim + 1 :]))


def _load(flat: Flat, x: int, tile: Shape, item: Node, graph: Graph) -> int:
    """The tiles of x."""
    for dim, part in enumerate(tile):
        maps = zip((*graph.grid, graph.loop), (*item["imap"], item.get("fmap", REPLICATED)), strict=True)
        x = _filled(flat, x, dim, part * prod(count for count, target in maps if target == dim))
    tiles = load_map(flat.shape(x), graph.grid, graph.loop, item["imap"], item.get("fmap", REPLICATED))
    return flat.reshape(flat.transpose(flat.reshape(x, tiles.split), tiles.permutation), tiles.joined)


def _filled(flat: Flat, x: int, dim: int, extent: int) -> int:
    """x with a filling at the end of a dim up to an extent."""
    shape = flat.shape(x)
    if shape[dim] == extent:
        return x
    rest = TensorType((*shape[:dim], extent - shape[dim], *shape[dim + 1 :]), flat.checker.types[x].dtype)
    if rest not in flat.fillings:
        flat.fillings[rest] = flat.add(write.source(rest))
    return flat.add(write.concat(x, flat.fillings[rest], dim=dim))


def _store(flat: Flat, tile: int, shape: Shape, omap: Sequence[int], graph: Graph) -> int:
    """The whole tensor of this shape from its tiles, without what was filled up."""
    tensor = store_map(flat.shape(tile)[len(graph.grid) + 1 :], graph.grid, omap)
    if flat.shape(tile) != tensor.split:
        tile = flat.add(write.broadcast(tile, tensor.split))
    x = flat.reshape(flat.transpose(tile, tensor.permutation), tensor.joined)
    for dim, extent in enumerate(shape):
        if flat.shape(x)[dim] > extent:
            x = flat.apply("slice", x, dim=dim, start=0, stop=extent, step=1)
    return x
