"""Derived ops written out: after `expand`, a graph holds no softmax, rms_norm, layer_norm or accum_rms.

An op with a definition stays what it is for the search. Back ends write those without an expression of their own out by
`expand_custom`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.elementwise import REGISTRY, record_of
from mirage_eg.ir.ops import OPS, Kind


def expand(graph: Graph) -> Graph:
    """The same graph in primitive ops and ops with definitions; equal shapes, equal function."""
    return _expanded(graph, custom=False) if REGISTRY or graph.depends_on_sizes else _known(graph)


def values_expanded(graph: Graph) -> tuple[int, ...]:
    """For each value of a graph the value that it is in `expand(graph)`."""
    if _is_primitive(graph, custom=False):
        return tuple(range(len(graph.types)))
    _, places = _written(graph, lambda item: _is_kept(item, custom=False), lambda value: _expanded(value, custom=False))
    return tuple(places[value] for value in range(len(graph.types)))


def expand_custom(graph: Graph) -> Graph:
    """`expand`, and ops with definitions and without a Triton expression as the ops of those."""
    return _expanded(graph, custom=True)


def expand_all(graph: Graph) -> Graph:
    """`expand`, and the library ops that others define (transposed convolutions) as those."""
    return expand_ops(expand(graph), _WRITTEN)


def expand_ops(graph: Graph, ops: Collection[str]) -> Graph:
    """The same kernel graph with these derived ops written out, the others kept; `graph` itself where it has none."""
    if not any(item.op in ops for item in graph.nodes):
        return graph
    return _written(graph, lambda item: item.op not in ops, lambda value: value)[0]


_WRITTEN = frozenset(row.name for row in OPS.values() if row.kind is Kind.LIBRARY and row.expand is not None)


def _expanded(graph: Graph, custom: bool) -> Graph:
    if _is_primitive(graph, custom):
        return graph
    return _written(graph, lambda item: _is_kept(item, custom), lambda value: _expanded(value, custom), custom)[0]


def _written(
    graph: Graph, kept: Callable[[Node], bool], inner: Callable[[Graph], Graph], custom: bool = False
) -> tuple[Graph, dict[int, int]]:
    """The graph with other ops than the kept ones written out, and the place of each of its values."""
    checker = Checker(graph.level, graph.grid, graph.loop)
    place: dict[int, int] = {}

    def apply(name: str, *operands: int, **attributes: Any) -> int:
        row = OPS[name]
        if row.expand is not None:
            return int(row.expand(apply, operands, [checker.types[i].shape for i in operands], attributes))
        if custom and (definition := lowered_by(name, attributes)) is not None:
            return by_definition(definition, operands, apply)
        return checker.append(node(name, *operands, **attributes))[0]

    for item, values in graph.numbered():
        operands = tuple(place[i] for i in item.operands)
        if not kept(item):
            place[values[0]] = apply(item.op, *operands, **item.mapping)
        else:
            attributes = {key: inner(value) if isinstance(value, Graph) else value for key, value in item.attributes}
            place.update(zip(values, checker.append(node(item.op, *operands, **attributes)), strict=True))
    return Graph.of_checked(checker, graph.threads, graph.cluster), place


def lowered_by(op: str, attributes: Mapping[str, Any]) -> Graph | None:
    """The definition that back ends write in the place of an op, if it has no Triton expression."""
    record = record_of(op)
    return None if record is None or record.triton is not None else definition_of(op, attributes)


@lru_cache(64)  # not where there are custom ops: their shapes may change
def _known(graph: Graph) -> Graph:
    return _expanded(graph, custom=False)


def _is_kept(item: Node, custom: bool) -> bool:
    row = OPS[item.op]
    return (row.expand is None or row.kind is Kind.LIBRARY) and not (custom and lowered_by(item.op, item.mapping) is not None)


def _is_primitive(graph: Graph, custom: bool) -> bool:
    return all(
        _is_kept(item, custom) and all(_is_primitive(value, custom) for _, value in item.attributes if isinstance(value, Graph))
        for item in graph.nodes
    )


def has_choices(graph: Graph) -> bool:
    """Whether an op of a kernel graph, or of the graphs in it, may leave out an operand, as a softmax its masked entries."""
    return _chooses(expand_custom(expand(graph)))


def _chooses(graph: Graph) -> bool:
    return any(OPS[item.op].selects or ("graph" in item.mapping and _chooses(item["graph"])) for item in graph.nodes)
