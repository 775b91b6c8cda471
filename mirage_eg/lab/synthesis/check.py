"""The checks of a candidate: the finite field, the soundness checker, and where its sides are defined."""

from dataclasses import dataclass

from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.soundness.check_law import Counterexample, Truth, check_law
from mirage_eg.egraph.soundness.definedness import definedness
from mirage_eg.lab.synthesis.field_check import equal_in_field
from mirage_eg.lab.synthesis.indexed import IndexedDomain, new_law
from mirage_eg.lab.synthesis.term_pair import TermPair

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
