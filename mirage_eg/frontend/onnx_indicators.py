"""Results of a program that are indicators: a comparison, or comparisons joined by and, or, not and exclusive or.

The IR has them as zeros and ones of any element type; ONNX has the type BOOL. A value is an indicator if the few numbers that
it can have, followed from comparisons on, are 0 and 1.
"""

from fractions import Fraction
from itertools import product

from mirage_eg.backends.evaluator.mpmath_ops import RATIONAL
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS, COMPARISONS, QUOTIENTS
from mirage_eg.ir.ops import Kind

Numbers = frozenset[Fraction]
_BOTH: Numbers = frozenset({Fraction(0), Fraction(1)})
_MOST = 8  # numbers that are followed


def returned_indicators(graph: Graph) -> tuple[bool, ...]:
    """For each result of a kernel graph whether it is an indicator."""
    flat = flatten(graph) if any(item.kind is Kind.GRAPH for item in graph.nodes) else graph
    found: dict[int, Numbers] = {}
    for item, values in flat.numbered():
        operands = [found.get(operand) for operand in item.operands]
        for value in values:
            numbers = _BOTH if flat.types[value].dtype is DType.bool else _numbers(item, operands)
            if numbers is not None and len(numbers) <= _MOST:
                found[value] = numbers
    return tuple(found.get(item.operands[0], frozenset({Fraction(2)})) <= _BOTH for item in flat.outputs)


def _numbers(item: Node, operands: list[Numbers | None]) -> Numbers | None:
    """The numbers that an op's result can have, None if these are many."""
    if item.op in COMPARISONS:
        return _BOTH
    given = [it for it in operands if it is not None]
    if len(given) < len(operands) or not given or item.kind is Kind.BOUNDARY:
        return None
    if item.kind is Kind.REARRANGEMENT or (item.op in CASTS and min(given[0]) >= 0):
        return frozenset().union(*given)
    if item.op == "where":
        return given[1] | given[2]
    if item.op not in RATIONAL or item.op in QUOTIENTS:
        return None
    return frozenset(RATIONAL[item.op](*numbers, **item.mapping) for numbers in product(*given))
