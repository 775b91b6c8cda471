"""Passes that keep the function of a graph: dead code and common subexpressions are removed."""

from dataclasses import replace

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import without_values
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind


def without_dead_code(program: Graph) -> Graph:
    """The kernel graph without nodes that no output depends on; inputs stay. `program` itself where all nodes are needed."""
    needed: set[int] = set()
    for item, values in reversed(program.numbered()):
        if item.op in ("input", "output") or not needed.isdisjoint(values):
            needed.update(item.operands, values)
    return without_values(program, {*range(len(program.types))} - needed)


def without_repeats(program: Graph) -> Graph:
    """The kernel graph without common subexpressions; `program` itself where there are none."""
    moved: dict[int, int] = {}
    first: dict[Node, range] = {}
    nodes: list[Node] = []
    count = 0
    for item, values in program.numbered():
        renumbered = item.moved(moved)
        results = first.get(renumbered) if item.kind is not Kind.BOUNDARY else None
        if results is None:
            nodes.append(renumbered)
            results = first[renumbered] = range(count, count + len(values))
            count += len(values)
        moved.update(zip(values, results, strict=True))
    return program if len(nodes) == len(program.nodes) else Graph(tuple(nodes))


def with_direct_reshapes(graph: Graph) -> Graph:
    """The graph with every reshape of a reshape as one of what that shows, and readers of a reshape to the same shape reading
    its operand; values keep their numbers, and none is left out."""
    source = {values[0]: item.operands[0] for item, values in graph.numbered() if item.op in RESHAPES}
    shown: dict[int, int] = {}  # the value that a reader of each reshape reads
    for value, behind in source.items():
        base = behind
        while base in source:
            base = source[base]
        shown[value] = base
    same = {value: base for value, base in shown.items() if graph.types[value].shape == graph.types[base].shape}
    nodes = list(graph.nodes)
    for place, item in enumerate(nodes):
        seen = shown if item.op in RESHAPES else same
        if not seen.keys().isdisjoint(item.operands):
            nodes[place] = Node(item.op, tuple(seen.get(operand, operand) for operand in item.operands), item.attributes)
    return replace(graph, nodes=tuple(nodes)) if nodes != list(graph.nodes) else graph
