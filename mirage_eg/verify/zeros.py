"""Inputs that hold zeros: ordinary data, at which a µGraph may be undefined although its program is not. Trusted.

The field cannot tell: its random residues are zero once in a million, and 0/0 is undefined for both. So float64 compares on
zeros where a graph divides, takes a logarithm or compares; and on the root of a denominator, as 3 for x · (x − 3) / (x − 3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.random_rounding import POLES
from mirage_eg.ir.definitions import primitive_nodes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS, COMPARISONS, PACKAGED, PRODUCTS, REGISTRY, keeps_zero
from mirage_eg.ir.op.library import ORDERS
from mirage_eg.ir.op.record import Sign
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.verify.verdict import AMONG_INPUTS

_Known = TypeVar("_Known")

ZEROS = ("zeros", "few zeros", "all zeros", "ties")
SOME = "some "  # begins the name of inputs that hold a number, a root of a denominator, as others hold zeros
MOST_ROOTS = 4  # compared for a pair of graphs
TIES = COMPARISONS | ORDERS  # equal operands are a case of their own


def holds_zeros(name: str) -> bool:
    """Whether inputs of this name hold zeros, or a root of a denominator."""
    return name in ZEROS or name.startswith(SOME)


def domain_of(name: str) -> str:
    """Of a difference found on these inputs."""
    return f"float64, {name}{AMONG_INPUTS}" if holds_zeros(name) else "float64"


def has_case_at_zero(graph: Graph) -> bool:
    """Whether an op of the graph has a pole or a case at an operand that may be 0; of a custom op it is not known."""
    found = False

    def sign(inside: Graph, item: Node, operands: list[Sign]) -> Sign:
        nonlocal found
        found = found or _has_case(inside, item, operands)
        return _sign(item, operands)

    _walked(expand(graph), [Sign.ANY] * len(graph.inputs), sign)
    return found


def has_ties(graph: Graph) -> bool:
    """Whether an op of the graph, or of a graph within it, compares or orders."""
    return any(has_ties(item["graph"]) if item.kind is Kind.GRAPH else item.op in TIES for item in expand(graph).nodes)


def roots_of_denominators(graph: Graph) -> frozenset[float]:
    """The numbers other than 0 at which a scaled and shifted input is 0 that is a factor below a pole, as 3 for 1 / (x − 3)."""
    found: set[Fraction] = set()

    def line(_: Graph, item: Node, operands: list[_Line]) -> _Line:
        if any(op in POLES for op, _ in primitive_nodes(item.op, item.mapping)):
            found.update(operands[-1].roots)
        return _line(item, operands)

    _walked(expand(graph), [_Line(Fraction(1), Fraction(0))] * len(graph.inputs), line)
    return frozenset(float(root) for root in found if root and Fraction(float(np.float32(root))) == root)


@dataclass(frozen=True, slots=True)
class _Line:
    """A value that is factor · input + offset; a factor of 0 stands for any other value."""

    factor: Fraction
    offset: Fraction
    others: frozenset[Fraction] = frozenset()  # roots of factors of the value

    @property
    def roots(self) -> frozenset[Fraction]:
        return self.others | ({-self.offset / self.factor} if self.factor else frozenset())


def _walked(graph: Graph, inputs: Sequence[_Known], of_op: Callable[[Graph, Node, list[_Known]], _Known]) -> list[_Known]:
    """What is known of the outputs, by the function of an op and of what is known of its operands; graphs within are walked."""
    known: list[_Known] = []
    given = iter(inputs)
    for item, values in graph.numbered():
        operands = [known[operand] for operand in item.operands]
        if item.op == "input":
            known.append(next(given))
        elif item.kind is Kind.GRAPH:
            known += _walked(item["graph"], operands, of_op)
        else:
            known += [of_op(graph, item, operands)] * len(values)
    return [known[item.operands[0]] for item in graph.outputs]


def _line(item: Node, operands: Sequence[_Line]) -> _Line:
    if item.op in ("scale", "shift") and operands[0].factor:
        factor, offset = item.get("factor", Fraction(1)), item.get("offset", Fraction(0))
        if isinstance(factor, Fraction) and isinstance(offset, Fraction):
            return _Line(operands[0].factor * factor, operands[0].offset * factor + offset)
    if item.kind is Kind.REARRANGEMENT or item.op in CASTS:
        return operands[0]
    keeps = item.op in PRODUCTS or (len(operands) == 1 and keeps_zero(item.op, item.mapping))
    return _Line(Fraction(0), Fraction(0), frozenset().union(*(one.roots for one in operands)) if keeps else frozenset())


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
    if item.op in PRODUCTS and item.operands[0] == item.operands[1]:
        return max(least, Sign.NOT_NEGATIVE)
    record = PACKAGED.get(item.op)
    return Sign.ANY if record is None or record.sign is None else record.sign(*operands, **item.mapping)


def set_zeros(x: Array, name: str, generator: np.random.Generator) -> None:
    """Set elements of x to 0: all; one of eight, also of rows and columns; or few, and a row where there are several.

    Few and a row are the number of `some NUMBER`.

    Inputs with ties stay: they are whole numbers, most of them equal.
    """
    number = float(name.removeprefix(SOME)) if name.startswith(SOME) else 0.0
    if name == "all zeros":
        x[...] = 0
    elif name != "ties" and x.size > 1:
        odds = 1 / 8 if name == "zeros" else 1 / 256
        x.reshape(-1)[generator.integers(x.size, size=max(1, int(x.size * odds)))] = number
        for dim, extent in enumerate(x.shape):
            if extent > 1 and (name == "zeros" or dim == x.ndim - 2):
                chosen = generator.permutation(extent)[: max(1, int(extent * odds))]
                x[(slice(None),) * dim + (chosen,)] = number
