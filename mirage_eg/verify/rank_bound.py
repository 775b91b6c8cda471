"""The rank up to which a law must hold to hold at all ranks, for laws whose ops treat the axes of a rank one by one and alike.

docs/explanation/ranks.md states and proves the two theorems. Both count in the trees of program and candidate together:

* without sums: one axis for each guard (a pad, a block of a patch, a cut of a concat), and for each input one axis fewer than
  it has different chains of moves above it;
* sums of products: as many axes as there are terms, each with the orders of the reads of one input in it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from math import factorial, prod
from typing import Any

from mirage_eg.ir.expand import expand_all
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS, PRODUCTS, SQUARES, TERMS
from mirage_eg.ir.op.moves import JOINS, MOVES, WHOLE_VIEWS
from mirage_eg.ir.ops import OPS, Kind

_AXIS_BY_AXIS = MOVES.keys() - WHOLE_VIEWS | {"fill", "full"}
_CONTRACTIONS = frozenset(name for name, row in OPS.items() if row.kind is Kind.MATMUL)
_SUMS = _CONTRACTIONS | {"sum"}
_PRODUCTS = _CONTRACTIONS | PRODUCTS | SQUARES
_GUARDED = JOINS | {"pad", "patch"}
_Chain = tuple[Any, ...]  # moves from the result down: op, attributes, the operand's place and shape
_LINEAR = frozenset({*TERMS, *CASTS, "scale", "shift", *_PRODUCTS, *_SUMS, *_AXIS_BY_AXIS})


def rank_bound(program: Graph, candidate: Graph, of_one_axis: frozenset[str] = frozenset()) -> int | None:
    """The rank up to which the law must be proved; None where an op is not known to treat axes one by one.

    `of_one_axis`: ops that are there as often at every rank, and so act along axes that each rank has.
    """
    sides = expand_all(program), expand_all(candidate)
    ops = {item.op for side in sides for item in side.nodes} - {"input", "output"}
    if not all(op in _AXIS_BY_AXIS | _SUMS or OPS[op].kind is Kind.ELEMENTWISE for op in ops):
        return None
    bounds = []
    if not ops & _SUMS:
        bounds.append(_without_sums(sides, of_one_axis))
    if ops <= _LINEAR:
        bounds.append(max(1, sum(_terms(side, of_one_axis) for side in sides)))
    return min(bounds, default=None)


def joins_of_one_axis(graphs: Sequence[Graph]) -> frozenset[str]:
    """Concatenations, if programs at different ranks have as many of them."""
    return JOINS if len({sum(it.op in JOINS for it in graph.nodes) for graph in graphs}) == 1 else frozenset()


def is_alike(graphs: Sequence[Graph], axis_of: Sequence[Callable[[int], Collection[int]]]) -> bool:
    """Whether programs at different ranks have the same ops in the same order, each along all axes or along none.

    An op of single axes is there once for each. `axis_of` has for each program the axes whose numbers an extent depends on.
    """
    runs = []
    for rank, (graph, axes) in enumerate(zip(graphs, axis_of, strict=True), 1):
        own = [(op, [*items]) for op, items in groupby((it for it, _ in graph.numbered()), key=lambda it: it.op)]
        runs.append(tuple(op for op, _ in own))
        for _, items in own:
            moved = {axis for item in items for extent in _moved_extents(graph, item) for axis in axes(extent)}
            if len(moved) not in (0, rank):
                return False
    return len(set(runs)) == 1


def _moved_extents(graph: Graph, item: Node) -> list[int]:
    """The extents of the dims of an operand that an op does not leave alone."""
    given = item.mapping
    if not item.operands or item.op == "output":
        return []
    shape = graph.types[item.operands[0]].shape
    match item.op:
        case "pad":
            return [it for it, first, last in zip(shape, given["before"], given["after"], strict=True) if first or last]
        case "patch":
            return [it for it, own in zip(shape, graph.types[item.operands[1]].shape, strict=True) if it != own]
        case _:
            return [shape[dim] for dim in given.get("dims", [given["dim"]] if "dim" in given else [])]


def _without_sums(sides: Sequence[Graph], of_one_axis: frozenset[str]) -> int:
    guards, reads = set[_Chain](), set[_Chain]()
    for side in sides:
        waiting: list[tuple[int, _Chain]] = [(item.operands[0], ()) for item in side.outputs]
        while waiting:
            value, above = waiting.pop()
            item, shape = side.node_of[value], side.types[value].shape
            if item.op == "input":
                reads.add((side.input_names[side.input_values.index(value)], *above))
            for place, operand in enumerate(item.operands):
                have = side.types[operand].shape
                moves = (item.op in _AXIS_BY_AXIS or have != shape) and item.op not in of_one_axis
                below = (*above, (item.op, item.attributes, place, have)) if moves else above
                waiting.append((operand, below))
                if moves and item.op in _GUARDED and (place or item.op == "pad"):
                    guards.add(below)
    return max(1, len(guards) + sum(count - 1 for count in Counter(chain[0] for chain in reads).values()))


def _terms(graph: Graph, of_one_axis: frozenset[str]) -> int:
    """The terms of a side, each as often as the reads of one input in it can be ordered."""
    count: dict[int, int] = {}
    reads: dict[int, Counter[int]] = {}  # most reads of each input in a term
    for item, values in graph.numbered():
        if item.op == "output":
            continue
        counts, own = [count[it] for it in item.operands], [reads[it] for it in item.operands]
        [value] = values
        most = Counter({value: 1}) if item.op == "input" else Counter[int]()
        for it in own:
            most = most + it if item.op in _PRODUCTS else most | it
        reads[value] = most + own[0] if item.op in SQUARES else most
        if item.op in of_one_axis:  # at each place along it one of the parts
            count[value] = max(counts)
        else:
            count[value] = _COUNTS[item.op](item, counts) if item.op in _COUNTS else max(counts, default=1)
    results = [item.operands[0] for item in graph.outputs]
    return sum(count[it] * prod(map(factorial, reads[it].values())) for it in results)


_COUNTS: Mapping[str, Callable[[Node, Sequence[int]], int]] = {
    **dict.fromkeys((*TERMS, *JOINS), lambda item, counts: sum(counts)),
    **dict.fromkeys((*PRODUCTS, *_CONTRACTIONS), lambda item, counts: prod(counts)),
    **dict.fromkeys(SQUARES, lambda item, counts: counts[0] ** 2),
    "shift": lambda item, counts: counts[0] + 1,
    "fill": lambda item, counts: 1,
    "pad": lambda item, counts: counts[0] + (2 if item["value"] else 0),  # v + [inside] x − [inside] v
    "patch": lambda item, counts: counts[0] * len(counts) + sum(counts[1:]),  # y − Σ [in block] y + Σ [in block] b
}
