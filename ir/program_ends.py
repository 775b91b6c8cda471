"""The ends of a program: slices of its inputs before everything else, and concatenations that only its outputs read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.moves import CUTS_AND_JOINS, JOINS, VIEWS_ONCE
from mirage_eg.ir.reached import reached


@dataclass(frozen=True, slots=True)
class Core:
    """The part of a program between its ends.

    The inputs of `program` are the values `inputs` of the nodes `before`, which are the given program's inputs and their views;
    its outputs are the values after these that `after`, the rest of the given program, reads.
    """

    program: Graph
    before: tuple[Node, ...]
    inputs: tuple[int, ...]
    after: tuple[Node, ...]

    def rejoined(self, graph: Graph) -> Graph:
        """A µGraph of the given program, from a µGraph of `program`."""
        copy = GraphCopy(graph)
        for item in self.before:
            copy.append(item)
        results = copy.inlined(graph, self.inputs)
        for item in self.after:
            results.append(copy.append(item.moved(results)))
        return copy.graph()


def core_of(program: Graph) -> Core | None:
    """The program between its ends; None where it has none, or an output is a view of an input."""
    nodes = [item for item in program.nodes if item.op != "output"]
    if len(nodes) != len(program.types) or not any(item.op in CUTS_AND_JOINS for item in nodes):
        return None
    views = _views_of_inputs(nodes)
    after = _joined(nodes)
    read = [*(i for value in after for i in nodes[value].operands), *(item.operands[0] for item in program.outputs)]
    results = [*dict.fromkeys(value for value in read if value not in after)]
    inside = _needed(nodes, results, lambda value: value in views and nodes[value].op in ("input", "slice"))
    inputs = [value for value in inside if value in views and nodes[value].op in ("input", "slice")]
    if not (after or any(nodes[value].op == "slice" for value in inputs)) or views.intersection(results):
        return None
    before = [value for value, item in enumerate(nodes) if item.op == "input"]
    before += [value for value in _needed(nodes, inputs, lambda value: False) if nodes[value].op != "input"]
    core = inputs + [value for value in inside if value not in inputs]
    place, position = ({value: number for number, value in enumerate(values)} for values in (before, core))
    outputs = [node("output", position[value], name=f"out{number}") for number, value in enumerate(results)]
    written = [_as_input(program, nodes, value, place[value]) for value in inputs]
    written += [nodes[value].moved(position) for value in core[len(inputs) :]]
    behind = {value: number for number, value in enumerate((*results, *after))}
    return Core(
        Graph((*written, *outputs)),
        tuple(nodes[value].moved(place) for value in before),
        tuple(place[value] for value in inputs),
        (*(nodes[value].moved(behind) for value in after), *(item.moved(behind) for item in program.outputs)),
    )


def _views_of_inputs(nodes: Sequence[Node]) -> set[int]:
    views = set[int]()
    for value, item in enumerate(nodes):
        if item.op == "input" or (item.op in VIEWS_ONCE and views.issuperset(item.operands)):
            views.add(value)
    return views


def _joined(nodes: Sequence[Node]) -> list[int]:
    """The concatenations that only outputs and each other read, and the views of them."""
    inner = set[int]()  # values that other nodes read
    free = set[int]()
    for value, item in reversed([*enumerate(nodes)]):
        if item.op in JOINS | VIEWS_ONCE and value not in inner:
            free.add(value)
        else:
            inner.update(item.operands)
    joined: dict[int, None] = {}
    for value, item in enumerate(nodes):
        if value in free and (item.op in JOINS or not joined.keys().isdisjoint(item.operands)):
            joined[value] = None
    return [*joined]


def _needed(nodes: Sequence[Node], values: Iterable[int], is_leaf: Callable[[int], bool]) -> list[int]:
    """The values from which others are computed, and these, in order; leaves are not computed."""
    return sorted(reached(values, lambda value: () if is_leaf(value) else nodes[value].operands))


def _as_input(program: Graph, nodes: Sequence[Node], value: int, place: int) -> Node:
    if nodes[value].op == "input":
        return nodes[value]
    kind = program.types[value]
    return write.source(kind, name=f"view {place}")
