"""Lints: faults of a true law (it cancels, feeds itself, follows from others), and the missing guard of a false one."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Apply, Pattern, Variable, applications, inlined, variables
from mirage_eg.egraph.oracle import UNUSED, Oracle
from mirage_eg.egraph.soundness.assignments import constants_of
from mirage_eg.egraph.soundness.claims import CheckableLaw
from mirage_eg.ir.ops import OPS, Kind

_MANY_DIGITS = 10**6


class Severity(StrEnum):
    """The severity of a lint: an error makes `rules check` fail."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Lint:
    """One remark on a law or, where `place` is a path, on a file."""

    level: Severity
    place: str
    message: str


def lint_law(checkable: CheckableLaw) -> Iterator[Lint]:
    """Lints that need no e-graph."""
    law = checkable.law
    if law.subsumes:
        yield Lint(Severity.WARNING, law.place, ":subsume takes e-nodes away, so that the search may miss what rests on them")
    for left, right in _directions(checkable):
        yield from _lint_cancellation(checkable, left, right)
        yield from _lint_expansion(checkable, left, right)


def _directions(checkable: CheckableLaw) -> Iterator[tuple[Pattern, Pattern]]:
    """Pairs of a matched pattern and the pattern it is united with; names of a rule's union are inlined."""
    names = dict(checkable.named) | checkable.law.lets
    for union in checkable.law.unions:
        left, right = (inlined(side, names) for side in union)
        yield left, right
        if checkable.law.form == "birewrite":
            yield right, left


def _lint_cancellation(checkable: CheckableLaw, left: Pattern, right: Pattern) -> Iterator[Lint]:
    if isinstance(left, Apply) and left.name in ("Slice", "Fill"):
        return  # it stands in the program, and what it does not take is part of the program
    lost = sorted((set(variables(left)) - set(variables(right))) & _expressions(checkable))
    if lost:
        yield Lint(
            Severity.ERROR,
            checkable.law.place,
            f"cancellation: {left} = {right} makes {', '.join(lost)} vanish; from the right side on, everything becomes part "
            "of everything, and nothing is pruned",
        )


def _expressions(checkable: CheckableLaw) -> set[str]:
    """The variables that are expressions; repeated constants and parts cost nothing."""
    return {name for name, sort in checkable.variables.items() if sort == "E"}


def _lint_expansion(checkable: CheckableLaw, left: Pattern, right: Pattern) -> Iterator[Lint]:
    """A right side that copies an expression or is larger, and that the left side matches again."""
    before, after = (sum(op_of(part.name) is not None for part in applications(side)) for side in (left, right))
    again = [part for part in applications(right) if isinstance(left, Apply) and matches(left, part, {})]
    often = [Counter(name for name in variables(side) if name in _expressions(checkable)) for side in (left, right)]
    copies = ", ".join(sorted(often[1] - often[0]))
    if after > before and again:
        words = f", copying {copies}" if copies else ""
        message = f"expanding: its right side, {after - before} larger{words}, matches its left again"
        yield Lint(Severity.WARNING, checkable.law.place, message)
    elif after > before and isinstance(left, Apply) and len(left.arguments) == 1 and copies:
        yield Lint(Severity.WARNING, checkable.law.place, f"expanding: every match copies {copies}; look at the growth")


def matches(pattern: Pattern, term: Pattern, bound: dict[str, Pattern]) -> bool:
    """Whether a term is an instance of a pattern; `bound` gets the terms of the pattern's variables."""
    match pattern, term:
        case Variable(name), _:
            return bound.setdefault(name, term) == term
        case Apply(name, arguments), Apply(other, others):
            return (
                name == other
                and len(arguments) == len(others)
                and all(matches(a, b, bound) for a, b in zip(arguments, others, strict=True))
            )
        case _:
            return pattern == term


def lint_rounded_constants(checkable: CheckableLaw) -> Iterator[Lint]:
    """A note on constants of a refuted law that look like rounded irrational ones: laws are tested in many more digits."""
    for constant in constants_of(checkable):
        if constant.denominator >= _MANY_DIGITS:
            text = f"{float(constant)} is taken as it is written; if it is rounded, write it by ops, such as (Sqrt (Const 1/2))"
            yield Lint(Severity.NOTE, checkable.law.place, text)


def lint_guards(checkable: CheckableLaw) -> Iterator[Lint]:
    """For a refuted law: a variable under a reduction on one side only needs a condition on its axes."""
    pair = next(_directions(checkable), None)
    if pair is None:
        return
    names = dict(checkable.named)
    conditions = [*(pattern for _, pattern in checkable.named), *(it for it in checkable.conditions if isinstance(it, Apply))]
    guarded = {
        name
        for pattern in conditions
        for application in applications(inlined(pattern, names))
        if application.name == "axes"
        for name in variables(application)
    }
    left, right = (dict(_scopes(side, frozenset())) for side in pair)
    for name in sorted(left.keys() & right.keys() & _expressions(checkable)):
        if left[name] != right[name] and name not in guarded:
            over = ", ".join(sorted(left[name] ^ right[name]))
            yield Lint(
                Severity.ERROR,
                checkable.law.place,
                f"unguarded: {name} is under the reduction over {over} on one side alone; add "
                f":when ((= a (axes {name})) (set-not-contains a {over}))",
            )


def _scopes(pattern: Pattern, over: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    match pattern:
        case Variable(name):
            yield name, over
        case Apply(name, arguments):
            op = op_of(name)
            if op is not None and OPS[op].kind is Kind.REDUCTION:
                yield from _scopes(arguments[1], over | {str(arguments[0])})
            else:
                for argument in arguments:
                    yield from _scopes(argument, over)


def lint_collapse(path: str, oracles: Sequence[tuple[str, str, Oracle]]) -> Iterator[Lint]:
    """An output's class that contains an input: the whole program has become equal to it."""
    for workload, split, oracle in oracles:
        variables_ = {class_: str(key[1]) for key, class_ in oracle.table.items() if key[0] == "Var"}
        for class_ in oracle.outputs:
            if class_ in variables_ and class_ != UNUSED:
                message = f"collapse: on {workload} ({split}) the output is in one class with the input {variables_[class_]}"
                yield Lint(Severity.ERROR, path, f"{message}; a law, or several together, cancel")
                return
