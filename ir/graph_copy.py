"""A copy of a graph, or of a part of it, in which some nodes are left out, reordered, or replaced by others."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import repeat
from typing import Any

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node, result_count
from mirage_eg.ir.reached import reached


class GraphCopy:
    """Nodes of a new graph, and for each copied value of the old graph its position in the new one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: list[Node] = []
        self._count = 0
        self.position: dict[int, int] = {}

    def __iter__(self) -> Iterator[tuple[Node, range]]:
        """The nodes of the old graph with the positions of their values."""
        return iter(self._graph.numbered())

    def append(self, item: Node) -> int:
        """Add a node whose operands are positions in the new graph; returns the position of its first value."""
        self._nodes.append(item)
        self._count += result_count(item)
        return self._count - result_count(item)

    def copy(self, item: Node, values: range) -> None:
        """Add a node of the old graph."""
        first = self.append(item.moved(self.position))
        self.position.update(zip(values, range(first, self._count), strict=True))

    def inlined(self, graph: Graph, inputs: Sequence[int]) -> list[int]:
        """Add the ops of another graph on positions in the place of its inputs; the positions of its outputs."""
        place = dict(zip(graph.input_values, inputs, strict=True))
        for item, values in graph.numbered():
            if item.op not in ("input", "output"):
                first = self.append(item.moved(place))
                place.update(zip(values, range(first, self._count), strict=True))
        return [place[item.operands[0]] for item in graph.outputs]

    def read(self, value: int, **given: Any) -> None:
        """Add an input in the place of a value of the old graph."""
        kind = self._graph.types[value]
        self.position[value] = self.append(write.source(kind, **given))

    def write(self, value: int, **given: Any) -> None:
        """Add an output that is a value of the old graph."""
        self.append(node("output", self.position[value], **given))

    def graph(self) -> Graph:
        """The new graph."""
        return replace(self._graph, nodes=tuple(self._nodes), keeps_undefined=False)


Changes = Iterable[dict[str, Any]]
_NONE: Changes = repeat({})


def with_attributes(graph: Graph, inputs: Changes = _NONE, outputs: Changes = _NONE, blocks: Changes = _NONE) -> Graph:
    """The graph with these attributes of its inputs, outputs and kernels, in order; others stay, and None leaves one out."""
    given = {"input": iter(inputs), "output": iter(outputs), "block": iter(blocks)}
    nodes = tuple(
        node(item.op, *item.operands, **item.mapping | next(given[item.op])) if item.op in given else item
        for item in graph.nodes
    )
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def nodes_between(graph: Graph, reads: Collection[int], makes: Iterable[int]) -> list[tuple[Node, range]]:
    """The nodes that compute some values, from others where these are met, in order; each with its values."""
    given = frozenset(reads)

    def makers(values: Iterable[int]) -> list[int]:
        return [graph.makers[value] for value in values if value not in given]

    found = {*reached(makers(makes), lambda place: makers(graph.nodes[place].operands))}
    return [numbered for place, numbered in enumerate(graph.numbered()) if place in found]


def with_rewritten(program: Graph, values: Set[int], rewrite: Callable[[GraphCopy, Node, int], int]) -> Graph:
    """The program in which `rewrite` replaces the nodes of these values; `program` itself without values.

    `rewrite` appends other nodes to the copy, for a node and its value, and gives the position of the new value.
    """
    if not values:
        return program
    copy = GraphCopy(program)
    for item, made in copy:
        if values.isdisjoint(made):
            copy.copy(item, made)
        else:
            [value] = made
            copy.position[value] = rewrite(copy, item, value)
    return copy.graph()


def without_values(program: Graph, dropped: Set[int]) -> Graph:
    """The kernel graph without nodes of one value that no other node reads; `program` itself where none is dropped."""
    if not dropped:
        return program
    copy = GraphCopy(program)
    for item, values in copy:
        if dropped.isdisjoint(values):
            copy.copy(item, values)
    return copy.graph()
