"""Is a law a consequence of others? They must put its two sides into one e-class."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from mirage_eg.egraph.expression import Constant, Expression, Term, needed_for, primes
from mirage_eg.egraph.laws import Apply, Equal, Literal, Pattern, Variable
from mirage_eg.egraph.oracle import Limits, saturate
from mirage_eg.egraph.primitives import PRIMITIVES
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.soundness.claims import CheckableLaw
from mirage_eg.egraph.soundness.indices import uses_indices

_CONSTANTS = (Fraction(3, 7), Fraction(-5, 11), Fraction(13, 4))


def reaches(rulebook: Rulebook, both: Expression, limits: Limits, without: frozenset[str] = frozenset()) -> bool:
    """Whether the laws, but those in `without`, derive the second output of `both` from the first within the limits."""
    left, right = both.outputs
    oracle = saturate(rulebook, needed_for(both, (left,)), limits, without)
    return oracle.class_of(both, right) == oracle.outputs[0]


def sides(checkable: CheckableLaw, domain: str) -> Expression | None:
    """Both sides of a law as one expression with its variables as inputs; None if the law is no union or has conditions other
    than guards on axes."""
    action = checkable.law.actions[-1]
    if action.kind != "union" or len(checkable.law.actions) > 1 or uses_indices(checkable):
        return None
    names = dict(checkable.named)
    excluded: dict[str, set[str]] = {}
    for condition in checkable.conditions:
        match condition:
            case Apply("set-not-contains" | "set-contains" as kind, (Variable(a), Variable(i))) if a in names:
                match names[a]:
                    case Apply("axes", (Variable(x),)):
                        excluded.setdefault(x, set()).update({i} if kind == "set-not-contains" else ())
                    case _:
                        return None
            case Equal() | Apply():
                return None
    strings = [name for name, sort in checkable.variables.items() if sort == "String"]
    values: dict[str, Constant] = dict(zip(strings, strings, strict=True))
    values |= dict(zip((name for name, sort in checkable.variables.items() if sort == "i64"), primes(), strict=False))
    rationals = [name for name, sort in checkable.variables.items() if sort == "BigRat"]
    values |= dict(zip(rationals, _CONSTANTS * len(rationals), strict=False))
    builder = _Builder(values, names)
    for name, sort in checkable.variables.items():
        if sort == "E":
            builder.input(name, frozenset(strings) - excluded.get(name, set()))
    outputs = tuple(builder.add(argument) for argument in action.arguments)
    return Expression(tuple(builder.terms), tuple(builder.inputs.values()), outputs, tuple(builder.free))


class _Builder:
    """Turns patterns into terms, with values for the variables of base sorts."""

    def __init__(self, values: Mapping[str, Constant], names: Mapping[str, Pattern]) -> None:
        self.values, self.names = values, names
        self.terms: list[Term] = []
        self.inputs: dict[str, int] = {}
        self.free: list[frozenset[str]] = []

    def input(self, name: str, free: frozenset[str]) -> None:
        self.inputs[name] = len(self.terms)
        self.terms.append(Term("Var", (name,)))
        self.free.append(free)

    def add(self, pattern: Pattern) -> int:
        match pattern:
            case Variable(name) if name in self.inputs:
                return self.inputs[name]
            case Variable(name):
                return self.add(self.names[name])
            case Apply(name, arguments):
                constants = tuple(self.constant(argument) for argument in arguments if self.is_constant(argument))
                children = tuple(self.add(argument) for argument in arguments if not self.is_constant(argument))
                term = Term(name, constants, children)
                if term not in self.terms:
                    self.terms.append(term)
                return self.terms.index(term)
            case Literal():
                raise AssertionError("a literal is no expression")

    def is_constant(self, pattern: Pattern) -> bool:
        match pattern:
            case Literal():
                return True
            case Variable(name):
                return name in self.values or (name in self.names and self.is_constant(self.names[name]))
            case Apply(name, _):
                return name in PRIMITIVES

    def constant(self, pattern: Pattern) -> Any:
        match pattern:
            case Literal(value):
                return value
            case Variable(name):
                return self.values[name] if name in self.values else self.constant(self.names[name])
            case Apply(name, arguments):
                return PRIMITIVES[name](*map(self.constant, arguments))
