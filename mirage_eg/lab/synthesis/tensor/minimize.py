"""Which laws of a file of whole tensors follow from its others? Each is asked at shapes of its own, the largest first.

Only laws that are proved for all shapes are asked: an instance at shapes that are all different speaks for them.
"""

import re
from collections.abc import Mapping, Sequence

from mirage_eg.egraph.growing_laws import culprits
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rulebook import Theory
from mirage_eg.egraph.tensor.decide import attributes_of
from mirage_eg.egraph.tensor.normal_form import NoNormalForm, equal
from mirage_eg.egraph.tensor.term import length
from mirage_eg.egraph.tensor.typing import IllTyped, typed
from mirage_eg.egraph.tensor.written import written_laws
from mirage_eg.lab.synthesis.derivation import SaturationEffort
from mirage_eg.lab.synthesis.tensor.derivability import TensorQuestion, TensorSession, question

EFFORT = SaturationEffort(iterations=4, nodes=6_000)
_RULESET = re.compile(r"\s*:ruleset\s+[^\s)]+")


def derived_tensor_laws(theory: Theory, others: Sequence[Law]) -> list[tuple[Law, tuple[str, ...]]]:
    """The laws of a theory that follow from those that stay and from `others`, each with the names of laws that suffice."""
    asked = {law.name: found for law in theory.laws if (found := _questions(law)) is not None}
    session = TensorSession()
    numbers = {law.name: session.add(_line(law)) for law in (*others, *theory.laws)}
    gone: dict[str, tuple[str, ...]] = {}
    for law in sorted(theory.laws, key=lambda it: (-_size(it), it.name)):
        if law.name not in asked:
            continue
        rest = [it for it in (*others, *theory.laws) if it.name != law.name and it.name not in gone]
        if _derives(session, numbers, asked[law.name], rest):
            needed = culprits(rest, lambda chosen, law=law: _derives(session, numbers, asked[law.name], chosen))  # type: ignore[misc]
            gone[law.name] = tuple(sorted(it.name for it in needed))
    return [(law, gone[law.name]) for law in theory.laws if law.name in gone]


def _derives(session: TensorSession, numbers: Mapping[str, int], asked: Sequence[TensorQuestion], laws: Sequence[Law]) -> bool:
    used = {numbers[it.name] for it in laws}
    return session.derives(asked, EFFORT, without=set(numbers.values()) - used)


def _questions(law: Law) -> list[TensorQuestion] | None:
    """Each direction of a law at shapes of its own; None if it is not proved by the normal form."""
    found = []
    for written in written_laws(law):
        equation = written.left.term, written.right.term
        attributes = attributes_of(written)
        try:
            if attributes is None or not equal(known := typed(equation, attributes)):
                return None
        except (IllTyped, NoNormalForm):
            return None
        found.append(question(known))
    return found


def _size(law: Law) -> int:
    [first, *_] = written_laws(law)
    return length(first.left.term) + length(first.right.term)


def _line(law: Law) -> str:
    """The law in the ruleset whose name the session replaces."""
    return f"{_RULESET.sub('', law.text).rstrip().removesuffix(')')} :ruleset tensor)"
