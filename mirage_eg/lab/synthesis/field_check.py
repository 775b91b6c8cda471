"""A pair of terms in the finite field, where rational arithmetic is exact and an accidental equality improbable."""

from fractions import Fraction
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.field_semantics import either
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Apply, Literal, Pattern, Variable, variables
from mirage_eg.egraph.primitives import PRIMITIVES
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.lab.synthesis.indexed import INDICATOR, NUMBERS, TENSORS
from mirage_eg.lab.synthesis.indexed_samples import PARTS
from mirage_eg.lab.synthesis.term_pair import TermPair

SHAPE = (3, 4)  # of the parts i and j
_VALUES = {"c": Fraction(7, 3), "d": Fraction(-5, 11), "s": Fraction(13, 6), "r": Fraction(-9, 4), "k": Fraction(3)}


def equal_in_field(pair: TermPair, seed: int) -> bool | None:
    """Whether both sides are equal modulo a prime wherever both are defined; None if the field does not model their ops."""
    assert {name for names in NUMBERS.values() for name in names} == _VALUES.keys()
    algebra = FieldAlgebra.of(seed)
    inputs = {
        name: _input(algebra, name)
        for name in dict.fromkeys([*variables(pair.left), *variables(pair.right)])
        if any(name in names for names in TENSORS.values())
    }
    left, right = (_evaluate(side, algebra, inputs) for side in (pair.left, pair.right))
    if left.unfaithful - {INDICATOR} or right.unfaithful - {INDICATOR}:
        return None
    first, second = algebra.read([left, right])
    different = first.residues != second.residues
    undefined = either(first.undefined, second.undefined)
    return not bool((different if undefined is None else different & ~undefined).any())


def _input(algebra: FieldAlgebra, name: str) -> FieldValue:
    position = next(number for number, it in enumerate(it for names in TENSORS.values() for it in names) if it == name)
    shape = (1, SHAPE[1]) if name == "u" else SHAPE
    return _wide(algebra, algebra.input(position, shape, below=2 if name in TENSORS[INDICATOR] else 0))


def _wide(algebra: FieldAlgebra, x: FieldValue) -> FieldValue:
    """x with one element for each index of the parts."""
    return algebra.view(x, SHAPE, lambda array: np.broadcast_to(array, SHAPE))


def _evaluate(term: Pattern, algebra: FieldAlgebra, inputs: dict[str, FieldValue]) -> FieldValue:
    if isinstance(term, Variable):
        return inputs[term.name]
    assert isinstance(term, Apply)
    op = op_of(term.name)
    assert op is not None
    row, count = OPS[op], len(OPS[op].attributes)
    if row.kind is Kind.REDUCTION:
        axis = PARTS.index(str(term.arguments[0])) - len(PARTS)
        return _wide(algebra, algebra.reduce(op, _evaluate(term.arguments[1], algebra, inputs), (axis,)))
    attributes = dict(zip(row.attributes, map(_constant, term.arguments[:count]), strict=True))
    operands = [_evaluate(it, algebra, inputs) for it in term.arguments[count:]]
    return algebra.elementwise(op, operands, attributes)


def _constant(term: Pattern) -> Any:
    match term:
        case Variable(name):
            return _VALUES.get(name, "float32")
        case Literal(value):
            return value
        case Apply(name, arguments):
            return PRIMITIVES[name](*map(_constant, arguments))
