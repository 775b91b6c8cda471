"""The rule file of a tensor synthesis: each law with its evidence, then merges and groups that laws of concatenations give.

A group has all terms that differ in one operand, as the parts of one term; it is a merge of two terms, used for any number.
A merge joins x a and x b to x [a, b]. So x a, x b and x c are parts of x [[a, b], c], and so on by induction: the operands of a
group are joined one by one, in the order of the terms, and each term is the last part of the concatenation that is left.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mirage_eg.egraph.tensor.decide import scope
from mirage_eg.egraph.tensor.term import size
from mirage_eg.lab.synthesis.tensor.rule_lines import Merge, merges
from mirage_eg.lab.synthesis.tensor.synthesize import TensorLaw, TensorSynthesis

_JOINED = re.compile(r"\(Concat (\d) (\w+) (\w+)\)")
_EQUAL_EXTENTS = re.compile(r"\(= \(vec-get \(shape (\w+)\) (\d)\) \(vec-get \(shape (\w+)\) \2\)\)")


@dataclass(frozen=True, slots=True)
class TermGroup:
    """The terms `member` with a fixed operand; `operand` is the other one, joined along `operand_axis`.

    `axis`: along which the terms are joined; `extents`: axes of the operands whose extents are equal in a group.
    """

    member: str
    operand: str
    operand_axis: str
    axis: str
    extents: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """The lines of a rule file: which terms are members, and the term of all."""
        context = re.sub(rf"\b{self.operand}\b", "(Hole)", self.member)
        own = f"{context} {self.operand_axis} {self.axis}"
        extents = " ".join(f"(vec-get (shape {self.operand}) {axis})" for axis in self.extents)
        key = f"(vec-of {extents})" if extents else "(vec-empty)"
        name = f"all {self.member} that differ in {self.operand}".replace('"', "")
        yield (
            f"(rule ((= a {self.member}) (= p (place a)) (= e {key})) ((member (group {own} e) p {self.operand} a))"
            f' :ruleset members :name "{name}")'
        )
        yield (
            f"(rule ((= g (group {own} e)) (= p (last_place g)) (joined g p {self.operand})) ((parts g p {self.member}))"
            f' :ruleset joins :name "one term for {name}")'
        )


def groups(merges: Iterable[Merge]) -> tuple[TermGroup, ...]:
    """The groups of merges whose terms differ in one operand and have equal extents at most as a condition."""
    found: dict[TermGroup, None] = {}
    for merge in merges:
        joined = _JOINED.findall(merge.whole)
        conditions = [_EQUAL_EXTENTS.fullmatch(it) for it in merge.conditions]
        if len(joined) != 1 or not all(conditions):
            continue
        [(axis, one, other)] = joined
        wanted = [_JOINED.sub(name, merge.whole) for name in (one, other)]
        if wanted == [merge.first, merge.second] and all(it and {it[1], it[3]} == {one, other} for it in conditions):
            found[TermGroup(merge.first, one, axis, merge.axis, tuple(it[2] for it in conditions if it))] = None
    return tuple(found)


LOADED_SIZE = 2  # laws of more ops make whole-program saturation slow: `mirage-eg rewrite` loads them with --rules alone


def tensor_rule_text(found: TensorSynthesis) -> str:
    """A rule file in the language of rules/tensor; equal syntheses have equal texts."""
    funnel = found.funnel
    chosen = ",".join(
        dict.fromkeys(name.split()[-1] if name.startswith(("Unary", "Binary")) else name.split()[0] for name in found.ops)
    )
    lines = [
        "; domain: tensor",
        *(["; default: off"] if found.size > LOADED_SIZE else []),
        f"; Laws of whole tensors with up to {found.size} ops a side, found by enumeration and proved for all shapes:",
        f";   mirage-eg rules synthesize --domain tensor --ops {chosen} --size {found.size} --seed {found.seed} --out FILE.egg",
        f"; {funnel.terms:,} terms in {funnel.classes:,} classes gave {funnel.pairs:,} equal pairs, {funnel.renamed:,} of them",
        f"; different without types and names. {funnel.proved:,} were proved, {funnel.refuted:,} refuted by a counterexample,",
        f"; {funnel.ill_typed:,} ill-typed, {funnel.tested:,} neither: only tested, and left out. The proved ones have",
        f"; {funnel.generalized:,} most general forms. {funnel.kept:,} are kept, and the others follow from them.",
        "",
    ]
    for law in found.laws:
        lines += [f"; {evidence(law)}", *law.lines]
    joint = [it for law in found.laws for it in merges(law.equation)] if found.size <= LOADED_SIZE else []
    if joint:
        lines += [
            "",
            "; Two terms anywhere that share an operand become the parts of one: laws of concatenations, read as merges.",
        ]
        lines += dict.fromkeys(it.line() for it in joint)
        lines += ["", "; All terms that share an operand become the parts of one: each merge, for any number of terms."]
        lines += [line for it in groups(joint) for line in it.lines()]
    return "\n".join(lines) + "\n"


def evidence(law: TensorLaw) -> str:
    """How a law was found: the sizes of its sides, its proof, and for which convolutions and poolings it holds."""
    left, right = map(size, law.equation)
    scopes = list(scope(law.equation, law.attributes))
    return f"size {left} = {right}; proved: normal form{', for ' if scopes else ''}{' and '.join(scopes)}"
