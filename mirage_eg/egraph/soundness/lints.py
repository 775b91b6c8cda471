"""What may be wrong with a law that is true: it cancels, feeds itself, says nothing new; and what guard a false one lacks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Apply, Pattern, Variable, applications, variables
from mirage_eg.egraph.oracle import UNUSED, Oracle
from mirage_eg.egraph.soundness.claims import Plan, spelled_out
from mirage_eg.ir.ops import OPS, Kind


class Level(StrEnum):
    """How bad it is: an error makes `rules check` fail."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Lint:
    """One remark on a law or, where `place` is a path, on a file."""

    level: Level
    place: str
    message: str


def lint_law(plan: Plan) -> Iterator[Lint]:
    """What can be seen without an e-graph."""
    law = plan.law
    if law.subsumes:
        yield Lint(Level.WARNING, law.place, ":subsume takes e-nodes away, so that the search may miss what rests on them")
    for left, right in _directions(plan):
        yield from _lint_cancellation(plan, left, right)
        yield from _lint_expansion(plan, left, right)


def _directions(plan: Plan) -> Iterator[tuple[Pattern, Pattern]]:
    """What is matched and what is made equal to it; a rule's union is such a pair, with its names written out."""
    names = dict(plan.named)
    for action in plan.law.actions:
        if action.kind == "let":
            names[str(action.arguments[0])] = action.arguments[1]
        if action.kind == "union":
            left, right = (spelled_out(argument, names) for argument in action.arguments)
            yield left, right
            if plan.law.form == "birewrite":
                yield right, left


def _lint_cancellation(plan: Plan, left: Pattern, right: Pattern) -> Iterator[Lint]:
    lost = sorted((set(variables(left)) - set(variables(right))) & _expressions(plan))
    if lost:
        yield Lint(
            Level.ERROR,
            plan.law.place,
            f"cancellation: {left} = {right} makes {', '.join(lost)} vanish; from the right side on, everything becomes part "
            "of everything, and nothing is pruned",
        )


def _expressions(plan: Plan) -> set[str]:
    """The variables that are expressions; constants and parts cost nothing to repeat."""
    return {name for name, sort in plan.drawn.items() if sort == "E"}


def _lint_expansion(plan: Plan, left: Pattern, right: Pattern) -> Iterator[Lint]:
    """A right side that repeats an expression or is larger, and that the left side matches again inside."""
    before, after = (sum(op_of(part.name) is not None for part in applications(side)) for side in (left, right))
    again = [part for part in applications(right) if isinstance(left, Apply) and _matches(left, part, {})]
    often = [Counter(name for name in variables(side) if name in _expressions(plan)) for side in (left, right)]
    copies = ", ".join(sorted(often[1] - often[0]))
    if after > before and again:
        words = f", copying {copies}" if copies else ""
        message = f"expanding: its right side, {after - before} larger{words}, matches its left again"
        yield Lint(Level.WARNING, plan.law.place, message)
    elif after > before and isinstance(left, Apply) and len(left.arguments) == 1 and copies:
        yield Lint(Level.WARNING, plan.law.place, f"expanding: every match copies {copies}; look at the growth")


def _matches(pattern: Pattern, term: Pattern, bound: dict[str, Pattern]) -> bool:
    match pattern, term:
        case Variable(name), _:
            return bound.setdefault(name, term) == term
        case Apply(name, arguments), Apply(other, others):
            return (
                name == other
                and len(arguments) == len(others)
                and all(_matches(a, b, bound) for a, b in zip(arguments, others, strict=True))
            )
        case _:
            return pattern == term


def lint_guards(plan: Plan) -> Iterator[Lint]:
    """For a law that was refuted: a variable that stands under a reduction on one side alone needs a condition on its axes."""
    pair = next(_directions(plan), None)
    if pair is None:
        return
    names = dict(plan.named)
    asked = [*(pattern for _, pattern in plan.named), *(it for it in plan.conditions if isinstance(it, Apply))]
    guarded = {
        name
        for pattern in asked
        for application in applications(spelled_out(pattern, names))
        if application.name == "axes"
        for name in variables(application)
    }
    left, right = (dict(_scopes(side, frozenset())) for side in pair)
    for name in sorted(left.keys() & right.keys() & _expressions(plan)):
        if left[name] != right[name] and name not in guarded:
            over = ", ".join(sorted(left[name] ^ right[name]))
            yield Lint(
                Level.ERROR,
                plan.law.place,
                f"unguarded: {name} stands under the reduction over {over} on one side alone; add "
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


def lint_collapse(path: str, found: Sequence[tuple[str, str, Oracle]]) -> Iterator[Lint]:
    """A root class with a bare variable in it: the whole program has become equal to one of its inputs."""
    for workload, split, oracle in found:
        variables_ = {class_: str(key[1]) for key, class_ in oracle.table.items() if key[0] == "Var"}
        for class_ in oracle.outputs:
            if class_ in variables_ and class_ != UNUSED:
                message = f"collapse: on {workload} ({split}) the output is in one class with the input {variables_[class_]}"
                yield Lint(Level.ERROR, path, f"{message}; a law, or several together, cancel")
                return
