"""Ops of whole programs as terms, and back, as far as the languages of `rules/simplify` and `rules/graph` have them alike.

`extents` writes numbers (a shape, the order of dims) as a constant of the language.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any

from egglog import bindings

from mirage_eg.egraph.terms import call, fact
from mirage_eg.ir.node import Node, node

Extents = Callable[[tuple[int, ...]], "bindings._Expr | str"]

_CONSTANTS = {"scale": ("Scale", "factor"), "shift": ("Shift", "offset"), "pow": ("Pow", "exponent")}
_OF_CONSTANTS = {constructor: (op, key) for op, (constructor, key) in _CONSTANTS.items()}
_MOST_PERMUTED = 4  # dims; of more dims only the permutations of the program are composed


def op_term(item: Node, operands: Sequence[bindings.Var], extents: Extents) -> bindings.Call | None:
    """The term of an op that has a constructor of its own in both languages."""
    match item.op:
        case "where":
            return call("Choice", *operands)
        case "scale" | "shift" | "pow":
            name, constant = _CONSTANTS[item.op]
            return call(name, item[constant], *operands)
        case "transpose":
            return call("Transpose", extents(item["permutation"]), *operands)
        case "reshape":
            return call("Reshape", extents(item["shape"]), *operands)
        case "matmul":
            return call("Matmul", *operands)
    return None


def op_node(constructor: str, constants: Sequence[Any], operands: Sequence[int]) -> Node | None:
    """The op of such a term; its constants are a Fraction or a tuple of numbers."""
    match constructor, constants:
        case ("Scale" | "Shift" | "Pow") as name, (constant,):
            op, key = _OF_CONSTANTS[name]
            return node(op, *operands, **{key: Fraction(constant)})
        case "Transpose", (permutation,):
            return node("transpose", *operands, permutation=permutation)
        case "Reshape", (shape,):
            return node("reshape", *operands, shape=shape)
        case "Matmul", _:
            return node("matmul", *operands)
        case "Choice", _:
            return node("where", *operands)
    return None


def may_be_no_op(item: Node) -> bool:
    """Whether this op does nothing if its result has the type of its operand."""
    return item.op in ("sum", "mean", "max", "broadcast", "repeat", "slice", "concat", "cast")


def permutation_facts(orders: Collection[tuple[int, ...]], extents: Extents) -> Iterator[bindings.ActionCommand]:
    """Which permutations are the identity, swap the last two dims, or compose to another."""
    closed = set(orders)
    for rank in {len(order) for order in orders}:
        own = {order for order in orders if len(order) == rank}
        few = rank <= _MOST_PERMUTED
        closed |= set(permutations(range(rank))) if few else {tuple(p[i] for i in q) for p in own for q in own}
        closed.add(tuple(range(rank)))
    for order in sorted(closed):
        rank = len(order)
        if list(order) == sorted(order):
            yield fact("identity", extents(order))
        if rank > 1 and order == (*range(rank - 2), rank - 1, rank - 2):
            yield fact("swap", extents(order))
        for first in sorted(closed):
            if len(first) == rank and (both := tuple(first[dim] for dim in order)) in closed:
                yield fact("composed", extents(order), extents(first), extents(both))


__all__ = ["may_be_no_op", "op_node", "op_term", "permutation_facts"]
