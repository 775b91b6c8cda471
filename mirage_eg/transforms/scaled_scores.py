"""Scaled scores: a factor of the queries or the keys of an attention of the library becomes one of their product.

(c q) k is c (q k): the library has a factor of the scores, and queries that the library computes need no kernel of their own to
be scaled. Nothing here is trusted: candidates are verified against the program as the user wrote it.
"""

from collections.abc import Iterator

from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.op.moves import PLAIN_VIEWS, VIEWS_OF_ALL
from mirage_eg.ir.ops import Level


def with_scaled_scores(program: Graph) -> Graph:
    """The program in which the factors of queries and keys are factors of the scores, where nothing else reads them.

    `program` holds primitive ops and no block graphs. A program without such a factor is returned unchanged.
    """
    scores = {it.values[0]: it for it in library_attentions(program)}
    scaled = {product: [*_factors(program, (it.queries, it.keys))] for product, it in scores.items()}
    left_out = {value for values in scaled.values() for value in values}
    if not left_out:
        return program
    checker, now = Checker(Level.KERNEL), dict[int, int]()
    for item, values in program.numbered():
        if left_out.intersection(values):
            now[values[0]] = now[item.operands[0]]
            continue
        now |= dict(zip(values, checker.append(item.moved(now)), strict=True))
        for factor in scaled.get(values[0], ()) if values else ():
            [now[values[0]]] = checker.append(node("scale", now[values[0]], factor=program.node_of[factor]["factor"]))
    return Graph.of_checked(checker)


def _factors(program: Graph, operands: tuple[int, ...]) -> Iterator[int]:
    """The values that scale operands behind views, and that are read as these alone."""
    for value in operands:
        while (item := program.node_of[value]).op in PLAIN_VIEWS | VIEWS_OF_ALL and len(program.readers[value]) == 1:
            [value] = item.operands
        if item.op == "scale" and item["factor"] > 0 and len(program.readers[value]) == 1:
            yield value
