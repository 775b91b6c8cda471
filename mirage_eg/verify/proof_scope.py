"""The scope of a proof by given laws: where it holds, and whether it overrules a difference in the field.

A proof by partial laws holds where program and µGraph are both defined. A proof that needs user laws does not overrule a
difference in the field if the field models every op, or if such a law narrows, is refuted or cannot be tested.
"""

from collections.abc import Iterable

from mirage_eg.backends.evaluator.field_semantics import ELEMENTWISE
from mirage_eg.egraph.expression import Expression, Term, op_of
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.soundness.definedness import Definedness, definedness
from mirage_eg.egraph.soundness.false_laws import refutation
from mirage_eg.egraph.soundness.unfold import unfolded
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.ops import OPS


class ProofScope:
    """The laws of a rulebook; those of a user are tested once each, at the first proof that needs them."""

    def __init__(self, rulebook: Rulebook) -> None:
        self.rulebook = rulebook
        self.own = frozenset(law.name for theory in rulebook.theories if not theory.packaged for law in theory.laws)
        self._laws = {law.name: law for law in rulebook.laws}
        self._widening = rulebook.widening
        self._tested: dict[str, Definedness | None] = {}
        self._objections: dict[str, str | None] = {}

    def partial(self, names: Iterable[str]) -> tuple[str, ...]:
        """The laws whose sides are not defined alike, or cannot be evaluated."""
        return tuple(name for name in names if self._is_partial(name))

    def _is_partial(self, name: str) -> bool:
        if name in self.own or self._laws[name].place.startswith("register_op/"):
            return (found := self._definedness(name)) is None or found.partial
        return name in self._widening

    def doubt(self, joint: Expression, names: Iterable[str]) -> str | None:
        """Why a proof of `joint` by these laws does not overrule a difference in the field; None if it does."""
        own = [name for name in names if name in self.own]
        if own and all(map(_is_modelled, joint.terms)):
            return f"proved by {', '.join(own)} alone, but the field, which models every op here, shows a difference"
        for name in own:
            if name not in self._objections:
                self._objections[name] = self._objection(self._laws[name])
        return next((self._objections[name] for name in own if self._objections[name] is not None), None)

    def _definedness(self, name: str) -> Definedness | None:
        if name not in self._tested:
            law, book = self._laws[name], self.rulebook
            try:
                forms = unfolded(law, book.laws, book.signatures)
                self._tested[name] = definedness(law, book.domain, book.signatures, forms)
            except RuleError:
                self._tested[name] = None
        return self._tested[name]

    def _objection(self, law: Law) -> str | None:
        """The reason why a law is no evidence: it cannot be tested, is refuted, or narrows."""
        try:
            false = refutation(law, self.rulebook)
        except RuleError as error:
            return str(error)
        if false is not None:
            return false
        found = self._definedness(law.name)
        return f"{law.place}: law {law.name!r} narrows: {found.narrows}" if found is not None and found.narrows else None


def _is_modelled(term: Term) -> bool:
    """Whether the field obeys the laws of real numbers at this term."""
    op = op_of(term.constructor)
    if op is None or op not in ELEMENTWISE:
        return op != "max"
    return not ELEMENTWISE[op].unfaithful(dict(zip(OPS[op].attributes, term.constants, strict=True)))
