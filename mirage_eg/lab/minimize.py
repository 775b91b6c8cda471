"""Minimization of a rule file: which of its laws follow from the others, and how.

A law follows if the others rewrite each of its sides into the other one, for every choice of the parts that its variables
may vary with. The largest laws are tried first; a law that follows is gone when the next one is tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_eg.backends.evaluator.sandbox import in_worker
from mirage_eg.egraph.chain_search import find_chains
from mirage_eg.egraph.equations import instance
from mirage_eg.egraph.expression import Expression, flatten
from mirage_eg.egraph.growing_laws import culprits
from mirage_eg.egraph.laws import Law, variables
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.egraph.rule_commands import law_spans
from mirage_eg.egraph.rule_files import TENSOR
from mirage_eg.egraph.rulebook import Rulebook, Theory, load_file
from mirage_eg.lab.synthesis.derivation import Laws, Question, SaturationEffort, asks_for_parts, is_equation, questions, reached
from mirage_eg.lab.synthesis.tensor.minimize import derived_tensor_laws
from mirage_eg.lab.synthesis.term_pair import Progress, no_progress, ops

EFFORT = SaturationEffort(iterations=8, nodes=20_000)
SECONDS = 60.0  # of a processor for one question; an iteration that never ends hits it


@dataclass(frozen=True, slots=True)
class DerivedLaw:
    """A law that follows: the laws that it needs, and the chain of steps, or the reason why there is none to show."""

    law: Law
    laws: tuple[str, ...]
    chain: ProofChain | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class Minimization:
    """The laws of a file that follow from the others, those that stay, and the text of the file without the former."""

    path: str
    domain: str
    derived: tuple[DerivedLaw, ...]
    kept: tuple[Law, ...]
    text: str


def minimize(
    path: str | Path, domain: str | None = None, with_packaged: bool = False, on_progress: Progress = no_progress
) -> Minimization:
    """Find the laws of a rule file that follow from its other laws, and with `with_packaged` from the packaged laws, too.

    Laws that assert facts, and laws with conditions that no instance shows, stay.

    Raises:
        RuleError: the file does not load.
        LimitError: the laws do not end within the limits of a worker process.
    """
    rulebook, theory = load_file(path, domain)
    if rulebook.domain == TENSOR:
        return _minimized_tensor_laws(rulebook, theory, with_packaged)
    own = {law.name for law in theory.laws}
    others = (
        frozenset()
        if with_packaged
        else frozenset(law.name for law in rulebook.laws if is_equation(law) and law.name not in own)
    )
    equations = sorted((law for law in theory.laws if is_equation(law)), key=_size, reverse=True)
    derived: list[DerivedLaw] = []
    for done, law in enumerate(equations):
        on_progress("laws", done, len(equations), f"{len(derived)} follow")
        laws = Laws(rulebook, others | {it.law.name for it in derived} | {law.name})
        asked = questions(law, rulebook.signatures, rulebook.domain, asks_for_parts(rulebook.laws))
        if asked and _all_reached(laws, asked):
            derived.append(_derivation(law, asked, laws))
    derived.sort(key=lambda it: theory.laws.index(it.law))
    gone = {it.law.name for it in derived}
    kept = tuple(law for law in theory.laws if law.name not in gone)
    return Minimization(str(path), rulebook.domain, tuple(derived), kept, _without(theory, derived))


def _minimized_tensor_laws(rulebook: Rulebook, theory: Theory, with_packaged: bool) -> Minimization:
    others = [law for it in rulebook.theories if it != theory for law in it.laws if law.form != "rule"] if with_packaged else []
    found = in_worker(
        derived_tensor_laws, theory, others, seconds=SECONDS, task=f"{theory.path}: an e-graph with the laws of tensors"
    )
    derived = tuple(DerivedLaw(law, needed, None, "laws of tensors have no steps to show") for law, needed in found)
    gone = {it.law.name for it in derived}
    kept = tuple(law for law in theory.laws if law.name not in gone)
    return Minimization(theory.path, TENSOR, derived, kept, _without(theory, derived))


def _size(law: Law) -> tuple[int, str]:
    return sum(ops(argument) for action in law.actions for argument in action.arguments), law.name


def _all_reached(laws: Laws, asked: Sequence[Question]) -> bool:
    return all(laws.rulebook.call(reached, laws, tuple(asked), EFFORT, seconds=SECONDS, task="an e-graph with the laws"))


def _derivation(law: Law, asked: Sequence[Question], laws: Laws) -> DerivedLaw:
    """The fewest laws by bisection, and a chain by them."""
    every = list(laws.equations)

    def suffice(chosen: Sequence[Law]) -> bool:
        names = {it.name for it in chosen}
        return _all_reached(
            Laws(laws.rulebook, frozenset(it.name for it in laws.rulebook.laws if is_equation(it)) - names), asked
        )

    needed = tuple(sorted(it.name for it in culprits(every, suffice)))
    joint = _joint(asked[0], laws.rulebook)
    found = find_chains(
        joint, needed, laws.rulebook, [str(term.constants[0]) for term in joint.terms if term.constructor == "Var"]
    )
    return DerivedLaw(law, needed, found.chains[0] if found.chains else None, found.missing)


def _joint(question: Question, rulebook: Rulebook) -> Expression:
    """Both sides of a question as one expression."""
    free = {str(argument): value for name, argument, value in question.facts if name == "axes" and value is not None}
    names = dict.fromkeys((*variables(question.start), *variables(question.goal)))
    trees = [
        instance(side, {name: ("Var", name) for name in names}, rulebook.signatures) for side in (question.start, question.goal)
    ]
    return flatten(trees, {name: free.get(name, frozenset()) for name in names})


def _without(theory: Theory, derived: Sequence[DerivedLaw]) -> str:
    """The file with a comment in place of each law that follows."""
    text = theory.text.encode()
    spans = law_spans(theory.path, theory.text)
    for it in sorted(derived, key=lambda it: spans[it.law.name], reverse=True):
        start, end = spans[it.law.name]
        line_end = text.find(b"\n", end)
        rest = text[end : None if line_end < 0 else line_end].strip()
        comment = f"; {it.law.name} follows from {', '.join(it.laws) or 'the language'}".replace("\n", " ").encode()
        text = text[:start] + comment + (b"" if not rest or rest.startswith(b";") else b"\n") + text[end:]
    return text.decode()
