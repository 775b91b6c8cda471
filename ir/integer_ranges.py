"""Ranges of a program's integers: an integer that no op wraps is the same number in any wider type.

In the field and in float64 integers do not wrap. `with_wraps` writes where they may, so that only programs that wrap alike are
equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_eg.ir import write
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.elementwise import CASTS, CLAMPS, EXTREMES, integer_range
from mirage_eg.ir.op.library import CHOICES, COUNTS, ORDERS
from mirage_eg.ir.op.record import Range, hull
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.result_dtypes import WRAPPING
from mirage_eg.ir.whole_inputs import counting_bounds


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The ranges of a graph's integers by value, those that may have wrapped, and graphs inside by the place of their node."""

    of: Mapping[int, Range]
    wrapped: frozenset[int]
    inside: "Mapping[int, _Ranges]"


def wrapped_values(program: Graph) -> frozenset[int]:
    """The integers of a program that sums, differences and products may have wrapped."""
    return frozenset(value for value in _ranges(program, {}).wrapped if program.node_of[value].op not in CASTS)


def place_ranges(program: Graph) -> dict[int, Range]:
    """The ranges of the inputs of a program that are places of elements, by position."""
    return {place: (0, bound - 1) for place, bound in counting_bounds(expand(program)).items()}


def value_ranges(graph: Graph, given: Mapping[int, Range]) -> Mapping[int, Range]:
    """The ranges of the integers of a graph by value, from those of inputs by position; of others that of their types."""
    return _ranges(graph, {graph.input_values[place]: found for place, found in given.items()}).of


def with_wraps(graph: Graph, given: Mapping[int, Range]) -> Graph:
    """The graph with an op `wrap` behind each integer of 8, 16 or 32 bits that may have wrapped, in graphs inside, too.

    `given`: ranges of inputs by position. Places of elements are within their extents and do not wrap.
    """
    return _with_wraps(graph, _ranges(graph, {graph.input_values[place]: found for place, found in given.items()}))


def _with_wraps(graph: Graph, found: _Ranges) -> Graph:
    inner = {place: _with_wraps(graph.nodes[place]["graph"], ranges) for place, ranges in found.inside.items()}
    inner = {place: one for place, one in inner.items() if one is not graph.nodes[place]["graph"]}
    wrapped = found.wrapped - _places(graph)
    if not inner and not wrapped:
        return graph
    copy = GraphCopy(graph)
    for place, (item, values) in enumerate(copy):
        copy.copy(item if place not in inner else node(item.op, *item.operands, graph=inner[place]), values)
        for value in wrapped.intersection(values):
            low, high = _of_type(graph.types[value].dtype)
            copy.position[value] = copy.append(write.wrapped(copy.position[value], low, (high - low).bit_length()))
    return copy.graph()


def _places(graph: Graph) -> frozenset[int]:
    """The values of which places of elements are computed, and those of 64 bits."""
    found = {value for value, kind in enumerate(graph.types) if kind.dtype.itemsize == 8}
    for item, values in reversed(graph.numbered()):
        row = OPS[item.op]
        if row.indices is not None:
            found.add(item.operands[row.indices])
        if not found.isdisjoint(values) and (row.kind is Kind.REARRANGEMENT or item.op in WRAPPING | CASTS):
            found.update(item.operands)
    return frozenset(found)


def _ranges(graph: Graph, given: Mapping[int, Range]) -> _Ranges:
    """`given`: ranges of inputs by value."""
    ranges: dict[int, Range] = dict(given)
    wrapped, inside = set(), dict[int, _Ranges]()
    for place, (item, values) in enumerate(graph.numbered()):
        if item.op == "input":
            continue
        if item.kind is Kind.GRAPH:
            inner: Graph = item["graph"]
            pairs = zip(inner.input_values, item.operands, strict=True)
            inside[place] = _ranges(inner, {one: ranges[other] for one, other in pairs if other in ranges})
            made = (inside[place].of.get(output.operands[0]) for output in inner.outputs)
            ranges.update((value, found) for value, found in zip(values, made, strict=True) if found is not None)
            continue
        for value in values:
            if not _is_whole(graph, value):
                continue
            every = _of_type(graph.types[value].dtype)
            low, high = _range(graph, item, ranges, every)
            fits = every[0] <= low and high <= every[1]
            ranges[value] = (low, high) if fits else every
            if not fits:
                wrapped.add(value)
    return _Ranges(ranges, frozenset(wrapped), inside)


def _is_whole(graph: Graph, value: int) -> bool:
    dtype = graph.types[value].dtype
    return dtype.is_integer or dtype is DType.bool


def _of_type(dtype: DType) -> Range:
    """The range of a type of whole numbers."""
    if dtype is DType.bool:
        return (0, 1)
    bits = 8 * dtype.itemsize
    return (0, 2**bits - 1) if dtype is DType.uint8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def wrapped_number(number: int, dtype: DType) -> int:
    """The number of a type of whole numbers that has the same low bits."""
    low, high = _of_type(dtype)
    return (number - low) % (high - low + 1) + low


def _range(graph: Graph, item: Node, known: Mapping[int, Range], every: Range) -> Range:
    row = OPS[item.op]
    if item.op in COUNTS or item.op in ORDERS:
        places = item["extent"] if item.op in COUNTS else graph.types[item.operands[0]].shape[item["dim"]]
        return (0, max(0, places - 1)) if type(places) is int else every  # a size that is chosen later may be any
    data = [i for position, i in enumerate(item.operands) if position >= row.conditions and position != row.indices]
    if not all(_is_whole(graph, i) for i in data):
        return every
    operands = [known.get(i, _of_type(graph.types[i].dtype)) for i in data]
    if row.kind is Kind.ELEMENTWISE:
        found = integer_range(item.op, item.mapping, *operands) or every
        return (int(found[0] > 0 or found[1] < 0), int(found != (0, 0))) if every == (0, 1) else found
    if row.kind is Kind.ACCUMULATOR and row.reduction == "sum" and every[1] < 2**16:
        return every[0] - 1, every[1] + 1
    if row.kind is Kind.REARRANGEMENT or item.op in CHOICES or "max" in (item.op, row.reduction):
        return hull(*operands)
    if row.rearrange is not None and operands:  # what no element is moved to may be zero
        value = int(item.get("value", 0))
        return hull((0, 0), (value, value), *operands)
    return every


def without_decided_choices(program: Graph, given: Mapping[int, Range]) -> Graph:
    """The program without choices and bounds that give one operand for all integers; `program` itself if it has none.

    `where(8 <= x, 0, y)` is y where x, a place among eight, is at most 7. So masks of experts on other devices end. Import
    applies this law: it is trusted, and tested on numbers. `given`: the ranges of inputs, by position.
    """
    ranges = value_ranges(program, given)
    chosen = {value: operand for value, item in enumerate(program.node_of) if (operand := _chosen(item, ranges)) is not None}
    kept = {value for value, operand in chosen.items() if program.types[operand] == program.types[value]}
    rewritten = with_rewritten(program, kept, lambda copy, item, value: copy.position[chosen[value]])
    return without_dead_code(rewritten) if kept else program


def _chosen(item: Node, ranges: Mapping[int, Range]) -> int | None:
    """The operand that the result is for all values of the integers."""
    if item.op == "where":
        condition, x, y = item.operands
        return {(1, 1): x, (0, 0): y}.get(ranges.get(condition, (0, 1)))
    if item.op in EXTREMES and all(it in ranges for it in item.operands):
        smaller, larger = sorted(item.operands, key=lambda it: ranges[it])
        if ranges[smaller][1] <= ranges[larger][0]:
            return larger if EXTREMES[item.op] > 0 else smaller
    if item.op in CLAMPS and (found := ranges.get(item.operands[0])):
        return item.operands[0] if item["low"] <= found[0] and found[1] <= item["high"] else None
    return None
