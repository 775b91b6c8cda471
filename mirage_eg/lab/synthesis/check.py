"""The checks of a candidate: the finite field, the soundness checker, and where its sides are defined."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.field_semantics import either
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.egraph.equations import instance
from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Apply, Law, Pattern, Variable, variables
from mirage_eg.egraph.soundness.check_law import Counterexample, Truth, check_law
from mirage_eg.egraph.soundness.definedness import definedness
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.lab.synthesis.indexed import INDICATOR, NUMBERS, TENSORS, IndexedDomain, new_law
from mirage_eg.lab.synthesis.indexed_samples import PARTS
from mirage_eg.lab.synthesis.term_pair import TermPair

SHAPE = (3, 4)  # of the parts i and j
_NUMBERS = {"c": Fraction(7, 3), "d": Fraction(-5, 11), "s": Fraction(13, 6), "r": Fraction(-9, 4), "k": Fraction(3)}
_VALUES: Mapping[str, Any] = {**_NUMBERS, "t": "float32"}


def equal_in_field(pair: TermPair, seed: int) -> bool | None:
    """Whether both sides are equal modulo a prime wherever both are defined; None if the field does not model their ops."""
    assert {name for names in NUMBERS.values() for name in names} == _NUMBERS.keys()
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
    attributes = {name: instance(it, _VALUES, {}) for name, it in zip(row.attributes, term.arguments[:count], strict=True)}
    operands = [_evaluate(it, algebra, inputs) for it in term.arguments[count:]]
    return algebra.elementwise(op, operands, attributes)


EXAMPLES = 400  # random assignments for a law


@dataclass(frozen=True, slots=True)
class FoundLaw:
    """A law that held in `trials` assignments; `partial` if its sides are not defined alike.

    `in_field`: whether the field has the equality, too; None if it does not model the ops. `cancels`: a tensor vanishes.
    """

    law: Law
    pair: TermPair
    trials: int
    in_field: bool | None
    partial: bool
    cancels: bool


@dataclass(frozen=True, slots=True)
class RejectedLaw:
    """A pair that is no law, and why: a counterexample, or each direction writes undefined terms."""

    law: Law
    counterexample: Counterexample | None
    reason: str


def check(law: Law, pair: TermPair, language: IndexedDomain) -> FoundLaw | RejectedLaw:
    """Test a law; of its directions those stay that write no undefined term."""
    signatures = language.rulebook.signatures
    in_field = equal_in_field(pair, language.seed)
    if in_field is False:
        return RejectedLaw(law, None, "the sides differ in the finite field")
    finding = check_law(law, language.name, signatures, EXAMPLES, language.seed)
    if finding.truth is Truth.REFUTED:
        return RejectedLaw(law, finding.counterexample, "refuted by a counterexample")
    if language.cancels(pair):
        return FoundLaw(law, pair, finding.trials, in_field, True, True)
    for form in _directions(law):
        found = definedness(form, language.name, signatures)
        if found.narrows is None:
            return FoundLaw(form, pair, finding.trials, in_field, found.partial, False)
    return RejectedLaw(law, None, "each direction writes undefined terms")


def _directions(law: Law) -> list[Law]:
    if law.form != "birewrite":
        return [law]
    assert law.sides is not None
    left, right = law.sides
    return [law, new_law(left, right, law.conditions, False), new_law(right, left, law.conditions, False)]
