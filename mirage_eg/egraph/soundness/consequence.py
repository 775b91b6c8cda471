"""Is a law a consequence of others? They must put its two sides into one e-class."""

from collections.abc import Mapping
from fractions import Fraction
from itertools import cycle, islice
from typing import Any

from mirage_eg.egraph.equations import instance
from mirage_eg.egraph.expression import Expression, flatten, needed_for, primes
from mirage_eg.egraph.laws import Apply, Equal, Signature, Variable
from mirage_eg.egraph.oracle import Limits, saturate
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.soundness.claims import CheckableLaw, inlined
from mirage_eg.egraph.soundness.indices import uses_indices

_CONSTANTS = (Fraction(3, 7), Fraction(-5, 11), Fraction(13, 4))


def reaches(rulebook: Rulebook, both: Expression, limits: Limits, without: frozenset[str] = frozenset()) -> bool:
    """Whether the laws, but those in `without`, derive the second output of `both` from the first within the limits."""
    left, right = both.outputs
    oracle = saturate(rulebook, needed_for(both, (left,)), limits, without)
    return oracle.class_of(both, right) == oracle.outputs[0]


def sides(checkable: CheckableLaw, signatures: Mapping[str, Signature]) -> list[Expression]:
    """Both sides of a law as one expression with its variables as inputs, for several constants, negative ones too.

    Empty if the law is no union or has conditions other than guards on axes.
    """
    action = checkable.law.actions[-1]
    if action.kind != "union" or len(checkable.law.actions) > 1 or uses_indices(checkable):
        return []
    names = dict(checkable.named)
    excluded: dict[str, set[str]] = {}
    for condition in checkable.conditions:
        match condition:
            case Apply("set-not-contains" | "set-contains" as kind, (Variable(a), Variable(i))) if a in names:
                match names[a]:
                    case Apply("axes", (Variable(x),)):
                        excluded.setdefault(x, set()).update({i} if kind == "set-not-contains" else ())
                    case _:
                        return []
            case Equal() | Apply():
                return []
    strings = [name for name, sort in checkable.variables.items() if sort == "String"]
    values: dict[str, Any] = dict(zip(strings, strings, strict=True))
    values |= dict(zip((name for name, sort in checkable.variables.items() if sort == "i64"), primes(), strict=False))
    rationals = [name for name, sort in checkable.variables.items() if sort == "BigRat"]
    free = {name: frozenset(strings) - excluded.get(name, set()) for name, sort in checkable.variables.items() if sort == "E"}
    values |= {name: ("Var", name) for name in free}
    found = []
    for first in range(len(_CONSTANTS) if rationals else 1):
        constants = islice(cycle(_CONSTANTS), first, None)
        chosen = values | dict(zip(rationals, constants, strict=False))
        found.append(flatten([instance(inlined(side, names), chosen, signatures) for side in action.arguments], free))
    return found
