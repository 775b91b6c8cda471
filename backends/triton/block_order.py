"""A block graph in the form and order in which its kernel is written, as far as exponentials ask for it.

Logarithms of exponentials go. An exponential comes behind the factors that say which of its entries count. Where several ratios
share an exponential, each with a mask of its own, it is computed for each of them, since it has another maximum there.
"""

from mirage_eg.backends.triton.exp_factors import powers_of
from mirage_eg.backends.triton.safe_exp import SafeExponential, judged_in_any_order
from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph, Node
from mirage_eg.ir.logarithms import without_far_logarithms


def prepared(block: Graph) -> Graph:
    """The block graph in primitive ops, flat and ordered."""
    graph = flatten(without_far_logarithms(flatten(expand(block))))
    exponentials = [values[0] for item, values in graph.numbered() if item.op == "exp"]
    for exponential in reversed(exponentials):
        graph = _taken_apart(graph, exponential)
    return _behind_factors(graph)


def _judged(graph: Graph) -> dict[int, SafeExponential | str]:
    return judged_in_any_order(graph, frozenset(range(len(graph.outputs))))


def _taken_apart(graph: Graph, exponential: int) -> Graph:
    """The graph with an exponential for each group of its readers, if only then it can be shifted."""
    if isinstance(_judged(graph)[exponential], SafeExponential):
        return graph
    groups = _groups(graph, exponential)
    copies = [exponential + number for number in range(len(groups))]
    copy_of = {reader: copy for group, copy in zip(groups, copies, strict=True) for reader in group}
    more = len(copies) - 1
    nodes: list[Node] = []
    for number, (item, values) in enumerate(graph.numbered()):
        operands = [
            copy_of[number] if operand == exponential else operand + more * (operand > exponential) for operand in item.operands
        ]
        nodes += [Node(item.op, tuple(operands), item.attributes)] * (len(copies) if exponential in values else 1)
    apart = Graph(tuple(nodes), graph.level, graph.grid, graph.loop, graph.threads)
    judged = _judged(apart)
    return apart if all(isinstance(judged[copy], SafeExponential) for copy in copies) else graph


def _groups(graph: Graph, exponential: int) -> list[set[int]]:
    """The nodes that read an exponential, in groups: what is built from those of two never meets while it has a degree."""
    degrees = powers_of(graph, exponential).degrees
    groups: list[set[int]] = []
    behind: dict[int, set[int]] = {}  # of every value with a degree the nodes that read the exponential
    for number, (item, values) in enumerate(graph.numbered()):
        traced = [operand for operand in item.operands if operand in degrees]
        if not traced or exponential in values:
            continue
        met = {number} if exponential in traced else set()
        met = met.union(*(behind[operand] for operand in traced if operand != exponential))
        met = met.union(*(group for group in groups if group & met))
        groups = [*(group for group in groups if not group & met), met]
        behind.update({value: met for value in values if value in degrees})
    return groups


def _behind_factors(graph: Graph) -> Graph:
    """The graph with each exponential behind its factors, where they are later; outputs come last, in order."""
    factors = {
        exponential: [factor.value for factor in found.factors]
        for exponential, found in _judged(graph).items()
        if isinstance(found, SafeExponential)
    }
    if not any(value > exponential for exponential, values in factors.items() for value in values):
        return graph
    waiting = [(item, values) for item, values in graph.numbered() if item.op != "output"]
    place: dict[int, int] = {}
    nodes: list[Node] = []
    while waiting:
        ready = [entry for entry in waiting if place.keys() >= set(entry[0].operands)]
        item, values = next((entry for entry in ready if place.keys() >= set(factors.get(entry[1][0], ()))), ready[0])
        nodes.append(Node(item.op, tuple(place[operand] for operand in item.operands), item.attributes))
        place[values[0]] = len(place)
        waiting.remove((item, values))
    nodes += [Node("output", (place[item.operands[0]],), item.attributes) for item in graph.outputs]
    return Graph(tuple(nodes), graph.level, graph.grid, graph.loop, graph.threads)


__all__ = ["prepared"]
