"""The laws of users that numbers refute: a run continues without them, and names each with its counterexample."""

from contextlib import suppress

from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.soundness.unfold import unfolded
from mirage_eg.ir.errors import RuleError

_EXAMPLES, _LEAST_EXAMPLES = 12_000, 200  # of all laws together, and of one


def without_false_laws(rulebook: Rulebook) -> tuple[Rulebook, tuple[str, ...]]:
    """The rulebook without the laws of users that are refuted, and a sentence for each; a law that cannot be tested stays."""
    own = [law for theory in rulebook.theories if not theory.packaged for law in theory.laws if law in rulebook.laws]
    examples = max(_LEAST_EXAMPLES, min(1_500, _EXAMPLES // max(1, len(own))))
    refuted = {}
    for law in own:
        with suppress(RuleError):
            if (text := refutation(law, rulebook, examples)) is not None:
                refuted[law.name] = text
    notes = tuple(f"{text}; the run continues without it" for text in refuted.values())
    return rulebook.leaving_out(refuted) if refuted else rulebook, notes


def refutation(law: Law, rulebook: Rulebook, examples: int = 1_500) -> str | None:
    """A sentence with the law's place and name and the counterexample, if it is false.

    Raises RuleError: the law cannot be tested.
    """
    from mirage_eg.egraph.soundness.check_law import check_law  # takes a tenth of a second to import

    forms = unfolded(law, rulebook.laws, rulebook.signatures)
    counterexample = check_law(law, rulebook.domain, rulebook.signatures, examples, forms=forms).counterexample
    if counterexample is None:
        return None
    return f"{law.place}: law {law.name!r} is false: {'; '.join(str(counterexample).splitlines())}"
