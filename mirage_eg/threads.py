"""Thread graphs of a block graph, by rule: chains of elementwise ops whose intermediate values have one consumer.

Such a chain needs no memory between its ops: a thread keeps the values in registers. Drawings show blocks this way.
"""

from mirage_eg.ir.graph import Checker, Graph, Node, node
from mirage_eg.ir.ops import OPS, Kind, Level


def with_threads(block: Graph) -> Graph:
    """An equal block graph in which every chain of two or more elementwise ops of one phase is a thread graph."""
    items = list(block.numbered())
    users: dict[int, list[int]] = {}
    for at, (item, _) in enumerate(items):
        for operand in item.operands:
            users.setdefault(operand, []).append(at)
    chain_of: dict[int, int] = {}  # number of a node: number of the last node of its chain
    for at, (item, values) in reversed(list(enumerate(items))):
        if OPS[item.op].kind is not Kind.ELEMENTWISE:
            continue
        chain_of[at] = at
        consumers = sorted(set(users.get(values[0], [])))
        if len(consumers) == 1 and consumers[0] in chain_of and _alike(block, items[consumers[0]][1][0], values[0]):
            chain_of[at] = chain_of[consumers[0]]
    chains: dict[int, list[int]] = {}
    for at in sorted(chain_of):
        chains.setdefault(chain_of[at], []).append(at)
    checker = Checker(block.level, block.grid, block.loop)
    nodes: list[Node] = []
    place: dict[int, int] = {}
    for at, (item, values) in enumerate(items):
        chain = chains.get(chain_of.get(at, -1), [])
        if len(chain) > 1 and chain[-1] != at:
            continue
        given = item.operands
        if len(chain) > 1:
            item, given = _thread(block, [items[i] for i in chain])
        made = Node(item.op, tuple(place[operand] for operand in given), item.attributes)
        nodes.append(made)
        place.update(zip(values, checker.append(made), strict=True))
    return Graph(tuple(nodes), block.level, block.grid, block.loop, block.threads)


def _alike(block: Graph, first: int, second: int) -> bool:
    """Whether two values are computed as often as each other, with the same threads on the same elements."""
    return block.phases[first] == block.phases[second] and block.types[first].shape == block.types[second].shape


def _thread(block: Graph, chain: list[tuple[Node, range]]) -> tuple[Node, tuple[int, ...]]:
    """A thread node with the chain in it, and the values of the block that it takes."""
    made = {values[0] for _, values in chain}
    given = tuple(dict.fromkeys(operand for item, _ in chain for operand in item.operands if operand not in made))
    nodes = [node("input", shape=block.types[value].shape, dtype=str(block.types[value].dtype)) for value in given]
    place = {value: at for at, value in enumerate(given)}
    for item, values in chain:
        place[values[0]] = len(nodes)
        nodes.append(Node(item.op, tuple(place[operand] for operand in item.operands), item.attributes))
    nodes.append(node("output", len(nodes) - 1))
    return node("thread", *given, graph=Graph(tuple(nodes), Level.THREAD)), given
