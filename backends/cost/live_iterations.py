"""The share of the iterations of a loop that run, where constant masks leave out the others."""

from math import prod

from mirage_eg.backends.triton.skipped_iterations import skipped_iterations
from mirage_eg.backends.triton.tiles import expanded
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, Node
from mirage_eg.ir.weights import marked_weights, prepared_values


def causal_share(rows: int, columns: int) -> float:
    """The share of tiles that a causal mask leaves, of `rows` times `columns`: exact where one divides the other."""
    return (1 + 1 / min(rows, columns)) / 2


def live_share(graph: Graph, item: Node) -> float:
    """The share of the iterations of a block graph, a node of a kernel graph, that run, if constant masks are causal."""
    block: Graph = item["graph"]
    shares = [1.0]
    for position in skipping_masks(graph, item):
        mask = block.inputs[position]
        split = [(target, count) for target, count in zip(mask["imap"], block.grid, strict=True) if target != REPLICATED]
        rows = prod(count for target, count in split if target != mask["fmap"])
        shares.append(causal_share(rows, block.loop * prod(count for target, count in split if target == mask["fmap"])))
    return min(shares)


def skipping_masks(graph: Graph, item: Node) -> tuple[int, ...]:
    """The positions of the inputs of a block graph that are constant masks for which its kernel skips iterations.

    They are of bool; a float that is added may be −∞ nowhere.
    """
    block: Graph = item["graph"]
    constants = prepared_values(graph) | marked_weights(graph)
    masks = [
        position
        for position, (operand, given) in enumerate(zip(item.operands, block.inputs, strict=True))
        if operand in constants and given["dtype"] == str(DType.bool) and given.get("fmap", REPLICATED) != REPLICATED
    ]
    if not masks or block.loop == 1:
        return ()
    known = [position for position, operand in enumerate(item.operands) if operand in constants]
    skipped = skipped_iterations(expanded(block), known)
    cases = () if skipped is None else skipped.cases
    return tuple(position for position in masks if any(tile.position == position for case in cases for tile in case))
