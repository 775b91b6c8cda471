"""Scaled scores: a factor of the queries or the keys of an attention of the library becomes one of their product.

(c q) k is c (q k): the library has a factor of the scores, and queries that the library computes need no kernel of their own to
be scaled. Nothing here is trusted: candidates are verified against the program as the user wrote it.
"""

from collections.abc import Iterator

from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.moves import PLAIN_VIEWS, VIEWS_OF_ALL


def with_scaled_scores(program: Graph) -> Graph:
    """The program in which the factors of queries and keys are factors of the scores, where nothing else reads them.

    `program` holds primitive ops and no block graphs. A program without such a factor is returned unchanged.
    """
    scores = {it.values[0]: it for it in library_attentions(program)}
    scaled = {product: [*_factors(program, (it.queries, it.keys))] for product, it in scores.items()}
    left_out = {value for values in scaled.values() for value in values}

    def rewrite(copy: GraphCopy, item: Node, value: int) -> int:
        if value in left_out:
            return copy.position[item.operands[0]]
        made = copy.append(item.moved(copy.position))
        for factor in scaled[value]:
            made = copy.append(node("scale", made, factor=program.node_of[factor]["factor"]))
        return made

    return with_rewritten(program, left_out | {product for product, factors in scaled.items() if factors}, rewrite)


def _factors(program: Graph, operands: tuple[int, ...]) -> Iterator[int]:
    """The values that scale operands behind views, and that are read as these alone."""
    for value in operands:
        while (item := program.node_of[value]).op in PLAIN_VIEWS | VIEWS_OF_ALL and len(program.readers[value]) == 1:
            [value] = item.operands
        if item.op == "scale" and item["factor"] > 0 and len(program.readers[value]) == 1:
            yield value
