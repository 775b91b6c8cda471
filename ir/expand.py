"""Derived ops written out: after `expand`, a graph holds no softmax, rms_norm, layer_norm or accum_rms."""

from typing import Any

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import OPS


def expand(graph: Graph) -> Graph:
    """The same graph in primitive ops; equal shapes, equal function."""
    if _is_primitive(graph):
        return graph
    checker = Checker(graph.level, graph.grid, graph.loop)
    nodes: list[Node] = []
    place: dict[int, int] = {}

    def append(item: Node) -> range:
        nodes.append(item)
        return checker.append(item)

    def apply(name: str, *operands: int, **attributes: Any) -> int:
        row = OPS[name]
        if row.expand is not None:
            return int(row.expand(apply, operands, [checker.types[i].shape for i in operands], attributes))
        return append(node(name, *operands, **attributes))[0]

    for item, values in graph.numbered():
        operands = tuple(place[i] for i in item.operands)
        if OPS[item.op].expand is not None:
            place[values[0]] = apply(item.op, *operands, **item.mapping)
        else:
            attributes = {key: expand(value) if isinstance(value, Graph) else value for key, value in item.attributes}
            place.update(zip(values, append(node(item.op, *operands, **attributes)), strict=True))
    return Graph(tuple(nodes), graph.level, graph.grid, graph.loop, graph.threads)


def _is_primitive(graph: Graph) -> bool:
    return all(
        OPS[item.op].expand is None and all(_is_primitive(value) for _, value in item.attributes if isinstance(value, Graph))
        for item in graph.nodes
    )
