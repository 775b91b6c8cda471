"""Copies in one launch: those whose operands are ready before any of the results is read, such as two growing caches.

A concatenation alone is a call of torch. Several are one generated kernel, and so are rows that are written in place, a
concatenation of rows that an index chooses, which are read where they are. One of which kernels write some operands at their
places copies the others. Images channels last are joined by a generated kernel, too: torch took 206 µs for 512 images of 2 × 58
channels and 28 × 28 in bfloat16 on an H200, and 51 row-major; seven others took 1.5 to 2.3 times as long (torch 2.11).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mirage_eg.backends.launches.image_layouts import image_layouts
from mirage_eg.backends.launches.views import gathers_of_rows, joined_values, reshaped_strides
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import SUMS
from mirage_eg.ir.op.library import ROW_READS, ROW_WRITES
from mirage_eg.ir.op.moves import JOINS, RESHAPES, VIEWS, VIEWS_IN_ORDER
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.weights import prepared_values
from mirage_eg.ir.written_inputs import rows_in_place


@dataclass(frozen=True, slots=True)
class JointConcat:
    """The positions of concatenations and rows in place that are launched together, before the node at `place`."""

    place: int
    members: tuple[int, ...]


def joint_concats(graph: Graph, copying: Mapping[int, int]) -> tuple[JointConcat, ...]:
    """The fewest launches of copies that keep all other kernels in their order, as far as they are of several or write rows.

    Each can be launched anywhere between the last maker of its operands and its first reader; the launches are points that
    stab these intervals (greedily by their ends, which gives the fewest).
    """
    left = dict(copying)
    due = {place: _first_reader(graph, value, left) for place, value in left.items()}
    ready = {place: max(_maker(graph, operand) for operand in graph.nodes[place].operands) for place in left}
    found = []
    while left:
        first = min(due[place] for place in left)
        members = tuple(place for place in left if ready[place] < first)
        found.append(JointConcat(first, members))
        left = {place: value for place, value in left.items() if place not in members}
    own = {place for place, value in copying.items() if value in rows_in_place(graph)} | _of_rows(graph, copying)
    own |= _partly_joined(graph) | _of_images(graph, copying)
    return tuple(joint for joint in found if len(joint.members) > 1 or joint.members[0] in own)


@once_per_graph
def read_by_copies(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """Values that no kernel computes before they are copied, and what the kernel that copies them reads for each: the inputs of
    which an index is the sum, the parts of a concatenation, or a view."""
    return {**summed_indices(graph), **copied_parts(graph), **copied_views(graph)}


@once_per_graph
def summed_indices(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """The indices of rows in place that the kernel which writes the rows computes: the two inputs of which each is the sum.

    Nothing else reads it. A cache of keys has its position so: the number of its tokens, and the token's own place.
    """
    writes = {graph.makers[value] for value in rows_in_place(graph)}
    return {
        values[0]: item.operands
        for item, values in graph.numbered()
        if item.op in SUMS and graph.readers[values[0]] and writes.issuperset(graph.readers[values[0]])
        if all(graph.nodes[reader].operands[1] == values[0] for reader in graph.readers[values[0]])
        if all(graph.node_of[it].op == "input" and graph.types[it].dtype is DType.int64 for it in item.operands)
        if all(extent == 1 for it in item.operands for extent in graph.types[it].shape)
    }


@once_per_graph
def copied_parts(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """The concatenations whose parts are written as rows in place, one after another: their operands.

    Nothing else reads them, and no part is stored in an input, which the same kernel might write. Keys of which an embedding
    of places turns some dims are such rows.
    """
    in_place = rows_in_place(graph)

    def is_copied(item: Node, value: int) -> bool:
        match [graph.numbered()[reader] for reader in graph.readers[value]]:
            case [(write, [made])] if made in in_place and write.operands[2] == value and write["dim"] != item["dim"]:
                shown = {graph.node_of[graph.behind(part, VIEWS | ROW_READS)].op for part in item.operands}
                return shown.isdisjoint({"input", *ROW_WRITES})
        return False

    return {
        value: graph.nodes[place].operands
        for place, value in _copying_concats(graph).items()
        if is_copied(graph.nodes[place], value)
    }


@once_per_graph
def copied_views(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """The operands of partly joined concatenations that merge dims of a view, such as channels in another order: the view.

    Nothing else reads them.
    """

    def view_of(operand: int) -> int | None:
        item, value = graph.node_of[operand], operand
        while item.op in RESHAPES and len(graph.readers[value]) == 1:
            [value] = item.operands
            item = graph.node_of[value]
        shape = graph.types[operand].shape
        apart = row_major(tuple(extent + 1 for extent in shape))  # dims with gaps between, of which none is merged
        merges = reshaped_strides(shape, apart, graph.types[value].shape) is not None
        return value if value != operand and item.op in VIEWS - VIEWS_IN_ORDER and merges else None

    operands = {operand for place in _partly_joined(graph) for operand in graph.nodes[place].operands}
    found = {operand: view_of(operand) for operand in operands}
    return {operand: (shown,) for operand, shown in found.items() if shown is not None}


def _of_images(graph: Graph, copying: Collection[int]) -> set[int]:
    """The concatenations of images channels last."""
    joins = {place for place in copying if graph.nodes[place].op in JOINS}
    images = image_layouts(graph, frozenset()) if joins and not graph.depends_on_sizes else {}
    return {place for place in joins if not images.keys().isdisjoint(graph.numbered()[place][1])}


@once_per_graph
def _partly_joined(graph: Graph) -> frozenset[int]:
    """The positions of concatenations that copy some operands to their places, where kernels write the others."""
    parts = copied_parts(graph)
    concats = {place for place, value in _copying_concats(graph).items() if value not in parts}
    return frozenset(place for place in concats if not _joined(graph).isdisjoint(graph.nodes[place].operands))


def _of_rows(graph: Graph, copying: Collection[int]) -> set[int]:
    """The concatenations of rows that an index chooses, such as those of several tables."""
    rows = gathers_of_rows(graph)

    def chosen(value: int) -> bool:
        item = graph.node_of[value]
        return value in rows or (item.op in VIEWS_IN_ORDER and chosen(item.operands[0]))

    return {place for place in copying if graph.nodes[place].op in JOINS and any(map(chosen, graph.nodes[place].operands))}


def copying_nodes(graph: Graph) -> dict[int, int]:
    """The values of copies that are launched, by the positions of their nodes: rows in place, and concatenations.

    A concatenation whose operands kernels write at their places is not, nor is one of weights alone, or of rows in place.
    """
    rows, parts = {graph.makers[value]: value for value in rows_in_place(graph)}, copied_parts(graph)
    concats = {place: value for place, value in _copying_concats(graph).items() if value not in parts}
    return dict(sorted((rows | concats).items()))


def _copying_concats(graph: Graph) -> dict[int, int]:
    apart = prepared_values(graph)
    concats = {
        place: values[0] for place, (item, values) in enumerate(graph.numbered()) if item.op in JOINS and values[0] not in apart
    }
    if not concats:
        return {}
    return {place: value for place, value in concats.items() if not _joined(graph) >= {*graph.nodes[place].operands}}


@once_per_graph
def _joined(graph: Graph) -> frozenset[int]:
    """The values that kernels may write at their places in concatenations."""
    return frozenset(joined_values(graph, [row_major(kind.shape) for kind in graph.types], frozenset()))


def _maker(graph: Graph, value: int) -> int:
    """The position of the node that makes a value or what it is a view of; -1 for an input."""
    place = graph.makers[value]
    item = graph.nodes[place]
    if item.op in VIEWS_IN_ORDER:
        return _maker(graph, item.operands[0])
    return -1 if item.op == "input" else place


def _first_reader(graph: Graph, value: int, concats: Collection[int]) -> int:
    """The position of the first node that reads a value or a view of it; that of its maker if another concatenation does."""
    places = [len(graph.nodes)]
    for reader in graph.readers[value]:
        item, values = graph.numbered()[reader]
        if item.op in VIEWS_IN_ORDER:
            places.append(_first_reader(graph, values[0], concats))
        elif reader in concats:
            places.append(_maker(graph, value))
        elif item.op != "output":
            places.append(reader)
    return min(places)


def launch_order(graph: Graph, joint: Sequence[JointConcat]) -> tuple[int, ...]:
    """The positions of the nodes in the order in which they are launched: members of a joint launch follow each other.

    Views follow what they show, inputs are first and outputs last. All others keep their order.
    """
    if not joint:
        return tuple(range(len(graph.nodes)))
    times = {place: (it.place, 0) for it in joint for place in it.members}  # the members, views of them, the node at the place
    for place, item in enumerate(graph.nodes):
        if item.op in ("input", "output"):
            times[place] = (-1 if item.op == "input" else len(graph.nodes), 2)
        elif item.op in VIEWS_IN_ORDER:
            at, rank = times[graph.makers[item.operands[0]]]
            times[place] = (at, max(rank, 1))
        else:
            times.setdefault(place, (place, 2))
    return tuple(sorted(times, key=lambda place: (times[place], place)))
