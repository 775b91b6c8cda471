"""Thread graphs: chains of elementwise ops of a block graph become one node, with intermediates in registers.

A thread graph has the ops of one phase and shape that lead to one result and have no other reader. Drawings display thread
graphs; the lowering expands them.
"""

from collections.abc import Iterator

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_attributes
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import Kind, Level


def form_threads(graph: Graph) -> Graph:
    """The kernel graph with thread graphs formed in all its block graphs."""
    formed = {block: with_threads(block) for block in dict.fromkeys(graph.blocks)}
    return with_attributes(graph, blocks=({"graph": formed[block]} for block in graph.blocks))


def thread_groups(block: Graph) -> list[list[int]]:
    """Positions of the nodes of each possible thread graph; the last node defines its result."""
    root: dict[int, int] = {}  # of every elementwise node, the last one of its group
    for position in reversed(range(len(block.nodes))):
        item, values = block.numbered()[position]
        if item.kind is not Kind.ELEMENTWISE:
            continue
        [value] = values
        user = block.readers[value][0] if len(block.readers[value]) == 1 else -1
        joins = user in root and _same_threads(block, block.numbered()[user][1][0], value)
        root[position] = root[user] if joins else position
    groups: dict[int, list[int]] = {}
    for position in sorted(root):
        groups.setdefault(root[position], []).append(position)
    return [members for members in groups.values() if len(members) > 1]


def _same_threads(block: Graph, first: int, second: int) -> bool:
    """Whether two values are computed equally often, by the same threads on the same elements."""
    return block.phases[first] is block.phases[second] and block.types[first].shape == block.types[second].shape


def with_threads(block: Graph) -> Graph:
    """The block graph with a thread node in the place of each group."""
    groups = {members[-1]: members for members in thread_groups(block)}
    inside = {position for members in groups.values() for position in members}
    copy = GraphCopy(block)
    for position, (item, values) in enumerate(block.numbered()):
        if position in groups:
            copy.copy(_thread(block, [block.numbered()[i] for i in groups[position]]), values)
        elif position not in inside:
            copy.copy(item, values)
    return copy.graph()


def _thread(block: Graph, members: list[tuple[Node, range]]) -> Node:
    """The node of a thread graph; its operands are values of the block graph."""
    inner = {value for _, values in members for value in values}
    operands = tuple(dict.fromkeys(i for item, _ in members for i in item.operands if i not in inner))
    new_value = {value: i for i, value in enumerate(operands)}
    nodes = [write.source(block.types[i]) for i in operands]
    for item, values in members:
        nodes.append(item.moved(new_value))
        new_value[values[0]] = len(new_value)
    nodes.append(node("output", len(new_value) - 1))
    return node("thread", *operands, graph=Graph(tuple(nodes), Level.THREAD))


def thread_graphs(graph: Graph) -> Iterator[Graph]:
    for item in graph.nodes:
        if item.op == "block":
            yield from (inner["graph"] for inner in item["graph"].nodes if inner.op == "thread")
