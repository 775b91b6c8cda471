"""Inputs that hold zeros: ordinary data, at which a µGraph may be undefined although its program is not. Trusted.

The field cannot tell: its random residues are zero once in a million, and 0/0 is undefined for both. So float64 compares on
zeros where a graph divides, takes a logarithm or compares.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.random_rounding import POLES
from mirage_eg.ir.definitions import primitive_nodes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import COMPARISONS, REGISTRY
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.verify.verdict import AMONG_INPUTS

ZEROS = ("zeros", "few zeros", "all zeros", "ties")
TIES = frozenset(  # equal operands are a case of their own
    (*COMPARISONS, *(op.name for op in LIBRARY.values() if op.orders))
)


def domain_of(name: str) -> str:
    """Of a difference found on these inputs."""
    return f"float64, {name}{AMONG_INPUTS}" if name in ZEROS else "float64"


def has_case_at_zero(graph: Graph) -> bool:
    """Whether an op of the graph has a pole or a case at an operand that may be 0; of a custom op it is not known."""
    return _signs(expand(graph), [Sign.ANY] * len(graph.inputs)) is None


def has_ties(graph: Graph) -> bool:
    """Whether an op of the graph, or of a graph within it, compares or orders."""
    return any(has_ties(item["graph"]) if item.kind is Kind.GRAPH else item.op in TIES for item in expand(graph).nodes)


class Sign(IntEnum):
    """Whether the elements of a value are known to be at least 0, or above."""

    ANY, NOT_NEGATIVE, POSITIVE = 0, 1, 2


def _signs(graph: Graph, inputs: Sequence[Sign]) -> list[Sign] | None:
    """The signs of the outputs; None where an op has a case at an operand that may be 0."""
    signs: list[Sign] = []
    given = iter(inputs)
    for item, values in graph.numbered():
        operands = [signs[operand] for operand in item.operands]
        if item.op == "input":
            signs.append(next(given))
        elif item.kind is Kind.GRAPH:
            inner = _signs(item["graph"], operands)
            if inner is None:
                return None
            signs += inner
        elif _has_case(graph, item, operands):
            return None
        else:
            signs += [_sign(item, operands)] * len(values)
    return [signs[item.operands[0]] for item in graph.outputs]


def _has_case(graph: Graph, item: Node, operands: Sequence[Sign]) -> bool:
    if item.op in TIES:
        return not all(graph.types[operand].dtype.is_integer for operand in item.operands)
    parts = primitive_nodes(item.op, item.mapping)
    if len(parts) > 1:
        return any(op in POLES or op in TIES for op, _ in parts)
    return item.op in REGISTRY or (item.op in POLES and item.get("exponent", -1) < 0 and operands[-1] < Sign.POSITIVE)


def _sign(item: Node, operands: Sequence[Sign]) -> Sign:
    row, least = OPS[item.op], min(operands, default=Sign.ANY)
    if row.kind in (Kind.REARRANGEMENT, Kind.MATMUL, Kind.REDUCTION, Kind.ACCUMULATOR):
        return least
    match item.op:
        case "exp" | "sigmoid" | "softplus":
            return Sign.POSITIVE
        case "square" | "abs" | "relu":
            return max(least, Sign.NOT_NEGATIVE)
        case "mul" if item.operands[0] == item.operands[1]:
            return max(least, Sign.NOT_NEGATIVE)
        case "cast" | "sqrt" | "rsqrt" | "mul" | "div" | "minimum":
            return least
        case "maximum":
            return max(operands)
        case "add" if least:
            return max(operands)
        case "scale" if item["factor"] > 0:
            return least
        case "shift" if item["offset"] > 0 and least:
            return Sign.POSITIVE
        case _:
            return Sign.ANY


def set_zeros(x: Array, name: str, generator: np.random.Generator) -> None:
    """Set elements of x to 0: all; one of eight, also of rows and columns; or few, and a row where there are several.

    Inputs with ties stay: they are whole numbers, most of them equal.
    """
    if name == "all zeros":
        x[...] = 0
    elif name != "ties" and x.size > 1:
        odds = 1 / 8 if name == "zeros" else 1 / 256
        x.reshape(-1)[generator.integers(x.size, size=max(1, int(x.size * odds)))] = 0
        for dim, extent in enumerate(x.shape):
            if extent > 1 and (name == "zeros" or dim == x.ndim - 2):
                chosen = generator.permutation(extent)[: max(1, int(extent * odds))]
                x[(slice(None),) * dim + (chosen,)] = 0
