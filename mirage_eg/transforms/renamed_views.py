"""Programs that use one value under two axis names, as X Xᵀ or X + X W: each further name is an input of its own.

The search works on axes, and a value has one name for each dim. So a use that gives a dim a second name is computed from
copies of the inputs, of as few as do. A µGraph of that program is one of the given program, when the copies are read from where
the inputs are. What the copies make is computed twice in it, and no law knows that the copies are equal.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph, Node, node

_MOST = 3  # times as many nodes as the given program; a larger one is searched in parts


@dataclass(frozen=True, slots=True)
class Renamed:
    """A program whose axes have names (`infer_axes`).

    `inputs` and `origin`: for each of its inputs and values, which one of the given program it equals.
    """

    program: Graph
    given: tuple[Node, ...]  # the inputs of the given program
    inputs: tuple[int, ...]
    origin: tuple[int, ...]

    @property
    def is_renamed(self) -> bool:
        """Whether inputs have copies."""
        return self.inputs != tuple(range(len(self.given)))

    def joined(self, graph: Graph) -> Graph:
        """A µGraph of `program` as one of the given program."""
        if not self.is_renamed:
            return graph
        nodes, place = [*self.given], dict[int, int]()
        count, shown = len(nodes), iter(self.inputs)
        for item, values in graph.numbered():
            if item.op == "input":
                place[values[0]] = next(shown)
                continue
            nodes.append(replace(item, operands=tuple(place[i] for i in item.operands)))
            place.update(zip(values, range(count, count + len(values)), strict=True))
            count += len(values)
        return Graph(tuple(nodes))


def rename_views(program: Graph) -> Renamed:
    """`program`, of primitive ops, with copies of inputs where a value needs a second axis name; else as it is.

    Raises:
        UnsupportedError: an op whose axes cannot be inferred, or too much would be computed twice; the message names the node.
    """
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
    """The nodes of a program but its outputs, each of which makes one value; `origin`: the given value that it equals."""

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
        if len(draft.nodes) > _MOST * len(nodes) or (further := _apart(draft)) is None:
            raise reason
        draft = further
    draft = _merged(draft)
    needed = _below(draft, [i for item in draft.outputs for i in item.operands])
    order = sorted(needed, key=lambda value: (draft.nodes[value].op != "input", value))
    place = {value: i for i, value in enumerate(order)}
    ordered = [_at(draft.nodes[value], place) for value in order]
    graph = Graph((*(_named(item, f"x{i}") for i, item in enumerate(ordered)), *(_at(item, place) for item in draft.outputs)))
    numbers = {value: i for i, value in enumerate(value for value, item in enumerate(nodes) if item.op == "input")}
    origin = tuple(draft.origin[value] for value in order)
    inputs = tuple(numbers[origin[i]] for i, item in enumerate(ordered) if item.op == "input")
    return Renamed(graph, program.inputs, inputs, origin)


def _apart(draft: _Draft) -> _Draft | None:
    """The first node whose axes have no names reads a copy of an operand: of the cheapest for which this helps."""
    at = bisect_left(range(len(draft.nodes)), True, key=lambda i: not draft.infers(i + 1))
    operands = draft.nodes[at].operands
    for place in sorted(range(len(operands)), key=lambda place: (len(_below(draft, [operands[place]])), -place)):
        cone = sorted(_below(draft, [operands[place]]))
        copied = {value: at + i for i, value in enumerate(cone)}
        reader = [copied[value] if i == place else value for i, value in enumerate(operands)]
        behind = {value: value + len(cone) * (value >= at) for value in range(len(draft.nodes))}
        nodes = (
            *draft.nodes[:at],
            *(_at(draft.nodes[value], copied) for value in cone),
            replace(draft.nodes[at], operands=tuple(reader)),
            *(_at(item, behind) for item in draft.nodes[at + 1 :]),
        )
        origin = (*draft.origin[:at], *(draft.origin[value] for value in cone), *draft.origin[at:])
        further = _Draft(nodes, origin, tuple(_at(item, behind) for item in draft.outputs))
        if further.infers(at + len(cone) + 1):
            return further
    return None


def _merged(draft: _Draft) -> _Draft:
    """The draft with no copy of an input that another one can be, and no node twice."""
    for copy, other in _alike(draft):
        if (merged := _joined_at(draft, copy, other)).infers():
            return _merged(merged)
    return draft


def _alike(draft: _Draft) -> Iterator[tuple[int, int]]:
    inputs = [value for value, item in enumerate(draft.nodes) if item.op == "input"]
    for place, copy in enumerate(inputs):
        yield from ((copy, other) for other in inputs[:place] if draft.origin[copy] == draft.origin[other])


def _joined_at(draft: _Draft, copy: int, other: int) -> _Draft:
    """The draft with one input in place of another, and each node that is twice then once."""
    place: dict[int, int] = {}
    known: dict[tuple[Node, int | None], int] = {}  # inputs are alike only where they were one
    kept: list[int] = []
    for value, item in enumerate(draft.nodes):
        if value == copy:
            place[value] = place[other]
            continue
        key = _at(item, place), value if item.op == "input" else None
        if key not in known:
            known[key] = len(kept)
            kept.append(value)
        place[value] = known[key]
    return _Draft(
        tuple(_at(draft.nodes[value], place) for value in kept),
        tuple(draft.origin[value] for value in kept),
        tuple(_at(item, place) for item in draft.outputs),
    )


def _below(draft: _Draft, roots: list[int]) -> set[int]:
    """The values that these are computed of, themselves included."""
    found: set[int] = set()
    waiting = [*roots]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += draft.nodes[value].operands
    return found


def _at(item: Node, place: dict[int, int]) -> Node:
    return replace(item, operands=tuple(place[i] for i in item.operands))


def _named(item: Node, name: str) -> Node:
    """An input by its place, so that equal programs are equal graphs."""
    if item.op != "input":
        return item
    return replace(item, attributes=tuple((key, name if key == "name" else value) for key, value in item.attributes))


__all__ = ["Renamed", "as_given", "rename_views"]
