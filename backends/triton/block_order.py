"""A block graph in the form and order in which its kernel is written, which safe exponentials determine.

Logarithms of exponentials go. An exponential comes after the factors that mask its entries. Where several ratios
share an exponential, each with a mask of its own, it is computed for each of them, since it has another maximum there.
"""

from dataclasses import replace
from functools import lru_cache

from mirage_eg.backends.triton.exp_factors import powers_of
from mirage_eg.backends.triton.safe_exp import SafeExponential, judged_in_any_order
from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.ir.expand import expand_custom
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.logarithms import without_far_logarithms
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.elementwise import REGISTRY


def prepared(block: Graph) -> Graph:
    """The block graph in primitive ops, flat and ordered; equal layers have equal ones."""
    return _of_block(block) if REGISTRY or block.depends_on_sizes else _known(block)


def _of_block(block: Graph) -> Graph:
    graph = flatten(_reduced_late(without_far_logarithms(flatten(expand_custom(block)))))
    exponentials = [values[0] for item, values in graph.numbered() if item.op == "exp"]
    for exponential in reversed(exponentials):
        graph = _taken_apart(graph, exponential)
    return _after_factors(graph)


_known = lru_cache(256)(_of_block)  # not where there are custom ops: their definitions may change


def _reduced_late(graph: Graph) -> Graph:
    """The graph whose accumulators reduce what they add up, where nothing else reads the reduction.

    A reduction in every iteration makes the threads of a block wait for each other. It is dead here, not gone.
    """
    nodes = []
    for item in graph.nodes:
        inner = graph.node_of[item.operands[0]] if item.op.startswith("accum_") and item.get("dim") is None else None
        if inner is not None and item.op == f"accum_{inner.op}" and len(graph.readers[item.operands[0]]) == 1:
            item = node(item.op, *inner.operands, **item.mapping, dim=inner["dim"])
        nodes.append(item)
    return replace(graph, nodes=tuple(nodes))


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
    apart = replace(graph, nodes=tuple(nodes))
    judged = _judged(apart)
    return apart if all(isinstance(judged[copy], SafeExponential) for copy in copies) else graph


def _groups(graph: Graph, exponential: int) -> list[set[int]]:
    """The nodes that read an exponential, in groups: values that depend on two groups never meet while they have a degree."""
    degrees = powers_of(graph, exponential).degrees
    groups: list[set[int]] = []
    sources: dict[int, set[int]] = {}  # of every value with a degree the nodes that read the exponential
    for number, (item, values) in enumerate(graph.numbered()):
        traced = [operand for operand in item.operands if operand in degrees]
        if not traced or exponential in values:
            continue
        met = {number} if exponential in traced else set()
        met = met.union(*(sources[operand] for operand in traced if operand != exponential))
        met = met.union(*(group for group in groups if group & met))
        groups = [*(group for group in groups if not group & met), met]
        sources.update({value: met for value in values if value in degrees})
    return groups


def _after_factors(graph: Graph) -> Graph:
    """The graph with each exponential after its factors; outputs are last, in order."""
    factors = {
        exponential: [factor.value for factor in shift.factors]
        for exponential, shift in _judged(graph).items()
        if isinstance(shift, SafeExponential)
    }
    if not any(value > exponential for exponential, values in factors.items() for value in values):
        return graph
    waiting = [(item, values) for item, values in graph.numbered() if item.op != "output"]
    copy = GraphCopy(graph)
    while waiting:
        ready = [entry for entry in waiting if copy.position.keys() >= set(entry[0].operands)]
        entry = next((it for it in ready if copy.position.keys() >= set(factors.get(it[1][0], ()))), ready[0])
        copy.copy(*entry)
        waiting.remove(entry)
    for item in graph.outputs:
        copy.copy(item, range(0))
    return copy.graph()
