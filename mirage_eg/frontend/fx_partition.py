"""Which nodes of a functional FX graph the IR can compute, and which of them form one program.

Each node has a *place*: an argument or parameter of the graph; a constant, computed on the host from buffers and from nothing
else, or from parameters where the IR lacks the op; a segment; or outside, for torch. A segment is a connected set of supported
nodes of one level. A level counts the changes between segments and outside on the longest path from the arguments, so that
segments and outside nodes of rising levels can run one after another.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import getitem
from typing import Any

from mirage_eg.frontend.fx_translate import Translation
from mirage_eg.frontend.fx_values import Fx, has_fixed_sizes, is_mutable, is_random, nbytes_of, operands_of, read_of
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import ProgramError, UnsupportedError
from mirage_eg.ir.op.moves import VIEWS_IN_ORDER, VIEWS_OF_ALL
from mirage_eg.ir.ops import OPS, Kind


class Place(StrEnum):
    """Where the value of an FX node comes from."""

    ARGUMENT = "argument"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    SEGMENT = "segment"
    OUTSIDE = "outside"
    DROPPED = "dropped"  # nothing uses it: an assertion, or a result that is not asked for


@dataclass(slots=True)
class Analysis:
    """What import finds out about the nodes of an FX graph.

    `same` maps a node whose value is that of another, as of a dropout outside training, to the other.
    """

    place: dict[Fx, Place] = field(default_factory=dict)
    reason: dict[Fx, str] = field(default_factory=dict)
    same: dict[Fx, Fx] = field(default_factory=dict)
    of_parameters: set[Fx] = field(default_factory=set)  # nothing of an argument among the ancestors
    moves: set[Fx] = field(default_factory=set)  # rearrangements
    library: set[Fx] = field(default_factory=set)  # ops that are always kernels of their own
    views: set[Fx] = field(default_factory=set)  # reshapes and broadcasts alone, and equal values
    level: dict[Fx, int] = field(default_factory=dict)

    def operands(self, node: Fx) -> list[Fx]:
        """The operands of a node, each as the node that computes the value."""
        return [self.same.get(operand, operand) for operand in operands_of(node)]


def constants_of(graph: Any, roles: Mapping[str, Place]) -> dict[Fx, Place]:
    """The places of placeholders and attributes by their names' `roles`, and CONSTANT for what depends on constants alone."""
    place: dict[Fx, Place] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            place[node] = roles.get(node.name, Place.ARGUMENT)
        elif node.op == "call_function" and not is_random(node):
            constant = all(place.get(operand) is Place.CONSTANT for operand in read_of(node)) and "val" in node.meta
            if constant and has_fixed_sizes(node):
                place[node] = Place.CONSTANT
    return place


def analyse(
    graph: Any, roles: Mapping[str, Place], known: Callable[[Fx], Any], excluded: Callable[[Fx], str | None] = lambda node: None
) -> Analysis:
    """Find the place of every node; `excluded` gives the reason why a node must stay outside, if there is one.

    AOTAutograd ends a graph with copies of results into arguments that the model changes; they stay outside.

    Raises ProgramError: a node changes an operand in place.
    """
    found = equal_constants(graph, roles)
    trial, live = Translation(found.same, known), _live(graph)
    for node in graph.nodes:
        if writes_argument(node):
            found.place[node], found.reason[node] = Place.OUTSIDE, "writes a result into an argument"
        elif is_mutable(node):
            raise ProgramError(
                f"{node.name}: {node.target} changes an operand in place, wanted a functional graph; "
                "try: ExportedProgram.run_decompositions({}), or AOTAutograd"
            )
        if node.op == "call_function" and node not in found.place:
            if node in live and (reason := excluded(node)) is not None:
                found.place[node], found.reason[node] = Place.OUTSIDE, reason
            elif node in live:
                _try(node, trial, found)
            else:
                found.place[node] = Place.DROPPED
    _keep_results_together(graph, found)
    _collect_constants(graph, found)
    _set_levels(graph, found)
    return found


def writes_argument(node: Fx) -> bool:
    """Whether a node copies a result into an argument of the graph, which may be a result of the graph, too."""
    written = str(node.target) == "aten.copy_.default" and node.args[0].op in ("placeholder", "get_attr")
    return written and all(user.op == "output" for user in node.users)


def _live(graph: Any) -> set[Fx]:
    """The nodes that an output depends on, and random calls: the next one follows them in the generator."""
    live: set[Fx] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live or writes_argument(node) or is_random(node):
            live.update(operands_of(node), [node])
    return live


def equal_constants(graph: Any, roles: Mapping[str, Place]) -> Analysis:
    """The constants of a graph; those that are computed twice by equal calls, as in each layer of a model, have one value."""
    from torch.fx.node import map_arg

    found = Analysis(constants_of(graph, roles))
    first: dict[str, Fx] = {}
    for node in graph.nodes:
        if node.op == "call_function" and found.place.get(node) is Place.CONSTANT:
            args = map_arg((node.args, dict(node.kwargs)), lambda it: found.same.get(it, it))
            known = first.setdefault(f"{node.target} {args}", node)  # an FX node is printed as its name
            if known is not node:
                found.same[node] = known
    return found


def _try(node: Fx, trial: Translation, found: Analysis) -> None:
    """Translate a node on trial: its place, and what kind of ops it becomes."""
    operands = found.operands(node)
    if all(found.place.get(it) in (Place.PARAMETER, Place.CONSTANT) or it in found.of_parameters for it in operands):
        found.of_parameters.add(node)
    before = len(trial.graph.nodes)
    try:
        trial.append(node)
    except UnsupportedError as error:
        found.place[node], found.reason[node] = Place.OUTSIDE, str(error)
        if is_random(node):
            found.of_parameters.discard(node)
            if all(found.place.get(it) is Place.CONSTANT for it in operands):
                found.reason[node] = RANDOM
        return
    found.place[node] = Place.SEGMENT
    ops = [item.op for item in trial.graph.nodes[before:] if item.op != "input"]
    if all(OPS[op].kind is Kind.REARRANGEMENT for op in ops):
        found.moves.add(node)
    if any(OPS[op].kind is Kind.LIBRARY for op in ops):
        found.library.add(node)
    if all(op in VIEWS_IN_ORDER & VIEWS_OF_ALL for op in ops):
        found.views.add(node)
    result = trial.values[node]
    if not ops and isinstance(result, Tensor):  # a number that is written twice is two values: `users_of` follows operands
        read = found.operands(node.args[0]) if node.target is getitem else operands
        source = next((it for it in read if trial.values.get(it, trial.inputs.get(it)) is result), None)
        if source is not None:
            found.same[node] = found.same.get(source, source)


def _keep_results_together(graph: Any, found: Analysis) -> None:
    """A node of several results goes outside with all of them if one result is not supported."""
    for node in graph.nodes:
        results = [user for user in node.users if user.target is getitem and found.place.get(user) is not Place.DROPPED]
        missing = [it for it in results if found.place.get(it) is Place.OUTSIDE]
        if found.place.get(node) is Place.SEGMENT and missing:
            for it in (node, *results):
                found.place[it], found.reason[it] = Place.OUTSIDE, found.reason[missing[0]]


def _collect_constants(graph: Any, found: Analysis) -> None:
    """Values of parameters alone: constants where the IR lacks the op or has a library op that spreads nothing, or where no
    segment uses them."""
    for node in reversed(graph.nodes):
        if node in found.of_parameters:
            unused = not any(found.place.get(user) is Place.SEGMENT for user in users_of(node, found))
            is_library = node in found.library and has_fixed_sizes(node) and not _is_spread(node, found)
            if found.place[node] is Place.OUTSIDE or is_library or unused:
                found.place[node] = Place.CONSTANT


def _is_spread(node: Fx, found: Analysis) -> bool:
    """Whether a value of parameters alone is larger than all that it is computed from, and one op of arguments reads it."""
    users, value = [*users_of(node, found)], node.meta["val"]
    alone = len(users) == 1 and found.place.get(users[0]) is Place.SEGMENT and users[0] not in found.of_parameters
    is_tensor = hasattr(value, "numel")
    return alone and is_tensor and 2 * value.numel() * value.element_size() > nbytes_of(node)  # which has both


def users_of(node: Fx, found: Analysis) -> Iterator[Fx]:
    """The nodes that use a value, through nodes of the same value too, such as the only part of a split."""
    source = found.same.get(node, node)
    for user in node.users:
        parts = [it for it in user.users if it.target is getitem and found.same.get(it) is source]
        for same in (user, *parts):
            if found.same.get(same) is source:
                yield from users_of(same, found)
        if not (user in found.same and (found.same[user] is source or user.target is getitem)):
            yield user


def _set_levels(graph: Any, found: Analysis) -> None:
    """Levels of all nodes. Segments that only move data between outside nodes go outside; of some only the shape is read."""
    while True:
        _levels(graph, found)
        parts = segments(graph, found)
        unread = [one for one in parts if not escaping(one, found)]
        idle = [one for one in parts if all(node in found.moves for node in one)]
        if not unread and not idle:
            return
        for node in (node for one in idle for node in one):
            found.place[node] = Place.OUTSIDE
            found.reason[node] = MOVES
        for node in (node for one in unread for node in one):
            found.place[node] = Place.DROPPED


MOVES = "moves data between outside nodes; no segment uses it"
RANDOM = "torch computes random numbers"


def _levels(graph: Any, found: Analysis) -> None:
    level: dict[Fx, int] = {}
    drawn = 0  # random calls stay in order
    for node in graph.nodes:
        place = found.place.get(node)
        if place is Place.SEGMENT and node not in found.of_parameters:
            level[node] = max((level.get(it, 0) for it in found.operands(node)), default=0)
        elif place is Place.OUTSIDE:
            after = [level.get(it, 0) + (found.place.get(it) is Place.SEGMENT) for it in found.operands(node)]
            level[node] = max(after, default=0)
            if is_random(node):
                level[node] = drawn = max(drawn, level[node])
    for node in reversed(graph.nodes):  # computed from parameters alone, or moved only: where it is used first
        if found.place.get(node) is Place.SEGMENT and (node in found.of_parameters or node in found.moves):
            users = [user for user in users_of(node, found) if found.place.get(user) not in (Place.CONSTANT, Place.DROPPED)]
            inside = [level[user] for user in users if found.place.get(user) is Place.SEGMENT]
            if node in found.of_parameters or (inside and len(inside) == len(users)):
                level[node] = min(inside)
    for node in graph.nodes:  # results of one node
        if node.target is getitem and found.place.get(node) is found.place.get(node.args[0]) is Place.SEGMENT:
            level[node] = level[node.args[0]]
    found.level = level


def segments(graph: Any, found: Analysis) -> list[list[Fx]]:
    """The nodes of each segment in the order of the graph; segments by level, then by their first node."""
    root: dict[Fx, Fx] = {}

    def find(node: Fx) -> Fx:
        while root[node] is not node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    members = [node for node in graph.nodes if found.place.get(node) is Place.SEGMENT and node not in found.same]
    first_user: dict[tuple[int, Fx], Fx] = {}  # of a value from outside the level
    for node in members:
        root[node] = node
        for operand in found.operands(node):
            if operand in root and found.level[operand] == found.level[node]:
                root[find(node)] = find(operand)
            elif found.place.get(operand) not in (Place.PARAMETER, Place.CONSTANT):
                other = first_user.setdefault((found.level[node], operand), node)
                root[find(node)] = find(other)
    groups: dict[Fx, list[Fx]] = {}
    for node in members:
        groups.setdefault(find(node), []).append(node)
    order = {node: place for place, node in enumerate(members)}
    return sorted(groups.values(), key=lambda group: (found.level[group[0]], order[group[0]]))


def escaping(group: Iterable[Fx], found: Analysis) -> list[Fx]:
    """The nodes of a segment whose values are used elsewhere."""
    inside = set(group)
    constant = Place.CONSTANT, Place.DROPPED  # computed on the host from its own operands, or not at all
    return [
        node
        for node in group
        if any(user not in inside and found.place.get(user) not in constant for user in users_of(node, found))
    ]
