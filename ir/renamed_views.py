"""Renamed views: programs that use one value under two axis names, as X Xᵀ or X + X W, get copies of inputs.

In the search each dim of a value has one axis name. A use that gives a dim a second name is computed from copies of inputs, as
few as possible. A µGraph of the program with copies becomes a µGraph of the given program when each copy is replaced by its
input. Values computed from copies are computed twice, and no law states that the copies are equal.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.program_ends import Core, core_of
from mirage_eg.ir.reached import reached

_MOST = 3  # times the nodes of the given program; a larger program is partitioned


@dataclass(frozen=True, slots=True)
class Renamed:
    """A program whose axes have names (`infer_axes`).

    `inputs` and `origin`: for each input and each value of `program`, the equal input or value of the given program, or of its
    `core`, if it has slices of inputs and concatenations of outputs.
    """

    program: Graph
    given: tuple[Node, ...]  # the inputs of the given program
    inputs: tuple[int, ...]
    origin: tuple[int, ...]
    core: Core | None = None

    @property
    def is_renamed(self) -> bool:
        """Whether it is another program than the given one."""
        return self.core is not None or self.inputs != tuple(range(len(self.given)))

    def joined(self, graph: Graph) -> Graph:
        """A µGraph of the given program, from a µGraph of `program`."""
        graph = self._without_copies(graph)
        return graph if self.core is None else self.core.rejoined(graph)

    def _without_copies(self, graph: Graph) -> Graph:
        if self.inputs == tuple(range(len(self.given))):
            return graph
        copy = GraphCopy(graph)
        for item in self.given:
            copy.append(item)
        for item, value in zip(graph.outputs, copy.inlined(graph, self.inputs), strict=True):
            copy.append(replace(item, operands=(value,)))
        return copy.graph()


def rename_views(program: Graph) -> Renamed:
    """`program`, of primitive ops, with copies of inputs for values that need a second axis name.

    Raises UnsupportedError: an op whose axes cannot be inferred, or more than _MOST times the nodes; the message names the
    node.
    """
    if (core := core_of(program)) is not None:
        return replace(rename_views(core.program), core=core)
    try:
        infer_axes(program)
    except UnsupportedError as error:
        return _renamed(program, error)
    return as_given(program)


def as_given(program: Graph) -> Renamed:
    """A program without copies."""
    return Renamed(program, program.inputs, tuple(range(len(program.inputs))), tuple(range(len(program.types))))


@dataclass(frozen=True, slots=True)
class _Draft:
    """The nodes of a program without its outputs, of one value each; `origin`: the equal values of the given program."""

    nodes: tuple[Node, ...]
    origin: tuple[int, ...]
    outputs: tuple[Node, ...]

    def infers(self, count: int | None = None) -> bool:
        """Whether the axes of the first nodes have names."""
        count = len(self.nodes) if count is None else count
        try:
            infer_axes(Graph((*self.nodes[:count], node("output", count - 1))))
        except UnsupportedError:
            return False
        return True


def _renamed(program: Graph, reason: UnsupportedError) -> Renamed:
    nodes = tuple(item for item in program.nodes if item.op != "output")
    if len(nodes) != len(program.types):
        raise reason  # an op of several results is a graph, which has no axes
    draft = _Draft(nodes, tuple(range(len(nodes))), program.outputs)
    while not draft.infers():
        if len(draft.nodes) > _MOST * len(nodes) or (longer := _with_copies(draft)) is None:
            raise reason
        draft = longer
    draft = _merged(draft)
    needed = _cone(draft, [i for item in draft.outputs for i in item.operands])
    order = sorted(needed, key=lambda value: (draft.nodes[value].op != "input", value))
    position = {value: i for i, value in enumerate(order)}
    ordered = [draft.nodes[value].moved(position) for value in order]
    outputs = (item.moved(position) for item in draft.outputs)
    graph = Graph((*(_named(item, f"x{i}") for i, item in enumerate(ordered)), *outputs))
    numbers = {value: i for i, value in enumerate(value for value, item in enumerate(nodes) if item.op == "input")}
    origin = tuple(draft.origin[value] for value in order)
    inputs = tuple(numbers[origin[i]] for i, item in enumerate(ordered) if item.op == "input")
    return Renamed(graph, program.inputs, inputs, origin)


def _with_copies(draft: _Draft) -> _Draft | None:
    """The draft with a copy of one operand of the first node without axis names: of the cheapest that gives it names."""
    at = bisect_left(range(len(draft.nodes)), True, key=lambda i: not draft.infers(i + 1))
    operands = draft.nodes[at].operands
    for index in sorted(range(len(operands)), key=lambda index: (len(_cone(draft, [operands[index]])), -index)):
        cone = sorted(_cone(draft, [operands[index]]))
        copied = {value: at + i for i, value in enumerate(cone)}
        reader = [copied[value] if i == index else value for i, value in enumerate(operands)]
        position = {value: value + len(cone) * (value >= at) for value in range(len(draft.nodes))}
        nodes = (
            *draft.nodes[:at],
            *(draft.nodes[value].moved(copied) for value in cone),
            replace(draft.nodes[at], operands=tuple(reader)),
            *(item.moved(position) for item in draft.nodes[at + 1 :]),
        )
        origin = (*draft.origin[:at], *(draft.origin[value] for value in cone), *draft.origin[at:])
        longer = _Draft(nodes, origin, tuple(item.moved(position) for item in draft.outputs))
        if longer.infers(at + len(cone) + 1):
            return longer
    return None


def _merged(draft: _Draft) -> _Draft:
    """The draft without redundant copies of inputs and without repeated nodes."""
    for copy, other in _copies_of_one_input(draft):
        if (merged := _without_copy(draft, copy, other)).infers():
            return _merged(merged)
    return draft


def _copies_of_one_input(draft: _Draft) -> Iterator[tuple[int, int]]:
    inputs = [value for value, item in enumerate(draft.nodes) if item.op == "input"]
    for i, copy in enumerate(inputs):
        yield from ((copy, other) for other in inputs[:i] if draft.origin[copy] == draft.origin[other])


def _without_copy(draft: _Draft, copy: int, other: int) -> _Draft:
    """The draft with input `copy` replaced by `other`, and without the nodes that this repeats."""
    position: dict[int, int] = {}
    memo: dict[tuple[Node, int | None], int] = {}  # the key of an input has its value: two inputs are never one node
    unique: list[int] = []
    for value, item in enumerate(draft.nodes):
        if value == copy:
            position[value] = position[other]
            continue
        key = item.moved(position), value if item.op == "input" else None
        if key not in memo:
            memo[key] = len(unique)
            unique.append(value)
        position[value] = memo[key]
    return _Draft(
        tuple(draft.nodes[value].moved(position) for value in unique),
        tuple(draft.origin[value] for value in unique),
        tuple(item.moved(position) for item in draft.outputs),
    )


def _cone(draft: _Draft, roots: list[int]) -> set[int]:
    """`roots` and all values from which they are computed."""
    return {*reached(roots, lambda value: draft.nodes[value].operands)}


def _named(item: Node, name: str) -> Node:
    """An input, named by its position: equal programs give equal graphs."""
    if item.op != "input":
        return item
    return replace(item, attributes=tuple((key, name if key == "name" else value) for key, value in item.attributes))
