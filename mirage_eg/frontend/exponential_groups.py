"""Ops of a kernel graph that one exported function must compute, so that exponentials stay in their range between functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import mul

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import FACTORS, power_of
from mirage_eg.ir.ops import Kind

_KINDS = (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.MATMUL, Kind.REARRANGEMENT)


@dataclass(frozen=True, slots=True)
class FunctionValues:
    """The values of a graph that one function computes, and those of them that it returns."""

    inside: frozenset[int]
    results: tuple[int, ...]


def exponential_groups(graph: Graph) -> list[FunctionValues]:
    """Each exponential that is summed, with the ops up to a quotient or a logarithm of sums.

    A group reads only values from before its first op, so that its function can be called there.
    """
    groups: list[set[int]] = []
    degrees: dict[int, Fraction] = {}  # the powers of exponentials in values, where they are not 0
    for item, values in graph.numbered():
        own = [degrees.get(operand, Fraction(0)) for operand in item.operands]
        if item.op == "exp":
            groups.append({*values})
            degrees[values[0]] = Fraction(1)
        elif any(own) and item.kind in _KINDS:
            met = [group for group in groups if any(operand in group and operand in degrees for operand in item.operands)]
            groups = [*(group for group in groups if group not in met), set(values).union(*met)]
            if degree := _degree(item, own):
                degrees[values[0]] = degree
    made = (_closed(graph, group) for group in groups)
    found = (_function(graph, group) for group in made)
    return [it for it in found if it is not None and degrees.keys().isdisjoint(it.results)]


def _degree(item: Node, degrees: Sequence[Fraction]) -> Fraction:
    """The degree of an op's result; 0 where a number leaves the exponentials."""
    if item.op == "log":
        return Fraction(0)
    if item.kind is Kind.MATMUL or item.op in FACTORS:
        return sum(map(mul, degrees, FACTORS.get(item.op, (1, 1))), Fraction(0))
    power = power_of(item.op, item.mapping)
    return max(degrees) if power is None else degrees[0] * power


def _closed(graph: Graph, group: set[int]) -> set[int]:
    """The group with all values between two of its values."""
    behind, before = set(group), set(group)
    for item, values in graph.numbered():
        if not behind.isdisjoint(item.operands):
            behind.update(values)
    for item, values in reversed(graph.numbered()):
        if not before.isdisjoint(values):
            before.update(item.operands)
    return behind & before


def _function(graph: Graph, group: set[int]) -> FunctionValues | None:
    """The group as a function, if it sums something, has ops for a function only, and can be called at its first op."""
    items = [item for item, values in graph.numbered() if not group.isdisjoint(values)]
    read = {operand for item in items for operand in item.operands} - group
    is_summed = any(item.kind in (Kind.REDUCTION, Kind.MATMUL) for item in items)
    if not is_summed or any(item.kind not in _KINDS for item in items) or max(read, default=-1) > min(group):
        return None
    outside = [operand for item, values in graph.numbered() if group.isdisjoint(values) for operand in item.operands]
    return FunctionValues(frozenset(group), tuple(value for value in sorted(group) if value in outside))
