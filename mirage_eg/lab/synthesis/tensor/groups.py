"""Groups: all terms that differ in one operand, as the parts of one term; a merge of two terms, used for any number of them.

A merge joins x a and x b to x [a, b]. So x a, x b and x c are parts of x [[a, b], c], and so on by induction: the operands of a
group are joined one by one in the order of the host, and each member is the last part of what is left.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mirage_eg.lab.synthesis.tensor.rule_lines import Merge

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
