"""Results of a program that are indicators: a comparison, or comparisons joined by and, or, not and exclusive or.

The IR has them as zeros and ones of any element type; ONNX has the type BOOL. A value is an indicator if the few numbers that
it can have, followed from comparisons on, are 0 and 1.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import COMPARISONS
from mirage_eg.ir.ops import Kind

Numbers = frozenset[Fraction]
_BOTH: Numbers = frozenset({Fraction(0), Fraction(1)})
_MOST = 8  # numbers that are followed

_JOINED: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
}


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
    if item.kind is Kind.REARRANGEMENT:
        return frozenset().union(*given)
    match item.op:
        case "scale":
            return frozenset(item["factor"] * it for it in given[0])
        case "shift":
            return frozenset(item["offset"] + it for it in given[0])
        case "square":
            return frozenset(it * it for it in given[0])
        case "cast" | "relu" | "abs":
            return given[0] if min(given[0]) >= 0 else None
        case "where":
            return given[1] | given[2]
        case _ if item.op in _JOINED:
            return frozenset(_JOINED[item.op](x, y) for x, y in product(*given))
        case _:
            return None
