"""Loops that the thread blocks of a cluster share out, as loops that each runs whole: the inverse of `structure.in_cluster`."""

from dataclasses import replace
from typing import Any

from mirage_eg.backends.triton.clusters import sliced_values
from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, Phase, node
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import Kind


def with_whole_loops(graph: Graph) -> Graph:
    """The kernel graph with each loop that a cluster shares out as one over all iterations; nodes and `cluster` stay.

    A tensor with the parts of the loop as its first dim is a transposed view, which becomes a view without that dim. `graph`
    itself if it shares no loop, or one whose parts are not only accumulated and combined.
    """
    nodes, place = [*graph.nodes], {value: at for at, (_, values) in enumerate(graph.numbered()) for value in values}
    readers = {value: {item.op for item in graph.nodes if value in item.operands} for value in place}
    for at, item in enumerate(graph.nodes):
        if item.op != "block" or not (slices := sliced_values(item["graph"])):
            continue
        if (block := _of_whole_loop(item["graph"], slices)) is None:
            return graph
        for given, value, operand in zip(item["graph"].inputs, item["graph"].input_values, item.operands, strict=True):
            if value in slices:
                dims, view = range(len(given["shape"])), graph.node_of[operand]
                order = (given["fmap"] - 1, *(dim for dim in dims if dim != given["fmap"] - 1))
                if view.op not in TRANSPOSES or view["permutation"] != order or readers[operand] != {"block"}:
                    return graph
                nodes[place[operand]] = write.reshape(view.operands[0], _joined(given))
        nodes[at] = node("block", *item.operands, **item.mapping | {"graph": block})
    return replace(graph, nodes=tuple(nodes))


def _joined(given: Node) -> tuple[int, ...]:
    """The shape of a tensor of a block whose first dim is joined to the dim that the loop splits."""
    parts, *shape = given["shape"]
    shape[given["fmap"] - 1] *= parts
    return tuple(shape)


def _of_whole_loop(block: Graph, slices: frozenset[int]) -> Graph | None:
    """The block graph without the dim of parts; None if that is another function."""
    copy = GraphCopy(block)
    for item, values in copy:
        if slices.isdisjoint((*item.operands, *values)):
            copy.copy(item, values)
        elif item.kind is Kind.REDUCTION and item["dim"] == 0 and block.phases[item.operands[0]] is not Phase.LOOP:
            shape = block.types[values[0]].shape
            copy.position[values[0]] = copy.append(write.reshape(copy.position[item.operands[0]], shape))
        elif slices.isdisjoint(values) or (alone := _without_parts(item)) is None:
            return None
        else:
            rank = len(block.types[values[0]].shape)
            for operand in item.operands:
                shape = block.types[operand].shape
                if operand not in slices and len(shape) == rank:  # of extent 1 along the parts
                    copy.position[operand] = copy.append(write.reshape(copy.position[operand], shape[1:]))
            copy.copy(alone, values)
    return replace(copy.graph(), loop=block.loop * block.cluster)


def _without_parts(item: Node) -> Node | None:
    """An op on slices as an op on tiles without the first dim; None if that is none."""
    changed: dict[str, Any]
    if item.op == "input" and 0 not in item["imap"]:
        imap = tuple(dim - (dim > 0) for dim in item["imap"])
        changed = {"shape": _joined(item), "imap": imap, "fmap": item["fmap"] - 1}
    elif item.kind in (Kind.ELEMENTWISE, Kind.MATMUL) or (item.kind is Kind.ACCUMULATOR and item.get("dim") is None):
        changed = {}
    elif item.kind in (Kind.REDUCTION, Kind.ACCUMULATOR) and item["dim"] > 0:
        changed = {"dim": item["dim"] - 1}
    elif item.op in TRANSPOSES and item["permutation"][0] == 0:
        changed = {"permutation": tuple(dim - 1 for dim in item["permutation"][1:])}
    elif item.op in RESHAPES:
        changed = {"shape": item["shape"][1:]}
    else:
        return None
    return node(item.op, *item.operands, **item.mapping | changed)
