"""Choices that the ranges of integers decide: `where(8 <= x, 0, y)` is y where x, a place among eight, is at most 7.

transformers masks the rows of experts that are on another device. Where no expert is, the masks would stand between an expert's
product and the op that reads it. Import applies this law: it is trusted, and tested on numbers.
"""

from collections.abc import Mapping

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.integer_ranges import value_ranges
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CLAMPS, EXTREMES
from mirage_eg.ir.op.record import Range
from mirage_eg.ir.passes import without_dead_code


def without_decided_choices(program: Graph, given: Mapping[int, Range]) -> Graph:
    """The program without choices and bounds that give one operand for all integers; `program` itself if it has none.

    `given`: the ranges of inputs, by position.
    """
    ranges, copy, changed = value_ranges(program, given), GraphCopy(program), False
    for item, values in copy:
        chosen = _chosen(item, ranges)
        if chosen is None or program.types[chosen] != program.types[values[0]]:
            copy.copy(item, values)
        else:
            copy.position[values[0]], changed = copy.position[chosen], True
    return without_dead_code(copy.graph()) if changed else program


def _chosen(item: Node, ranges: Mapping[int, Range]) -> int | None:
    """The operand that the result is for all values of the integers."""
    if item.op == "where":
        condition, x, y = item.operands
        return {(1, 1): x, (0, 0): y}.get(ranges.get(condition, (0, 1)))
    if item.op in EXTREMES and all(it in ranges for it in item.operands):
        smaller, larger = sorted(item.operands, key=lambda it: ranges[it])
        if ranges[smaller][1] <= ranges[larger][0]:
            return larger if EXTREMES[item.op] > 0 else smaller
    if item.op in CLAMPS and (found := ranges.get(item.operands[0])):
        return item.operands[0] if item["low"] <= found[0] and found[1] <= item["high"] else None
    return None
