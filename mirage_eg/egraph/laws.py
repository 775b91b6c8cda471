"""Laws as data: what a rewrite, birewrite or rule says, read once from egglog's commands so that it can be checked and shown.

A rewrite `l -> r :when c` is the rule that, where c holds, l and r are one class.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from egglog import bindings


@dataclass(frozen=True, slots=True)
class Variable:
    """A pattern variable."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant of an egglog base sort."""

    value: int | float | str | bool | None

    def __str__(self) -> str:
        match self.value:
            case bool():
                return str(self.value).lower()
            case str():
                return f'"{self.value}"'
            case _:
                return str(self.value)


@dataclass(frozen=True, slots=True)
class Apply:
    """A constructor, function, relation or primitive with its arguments."""

    name: str
    arguments: tuple[Pattern, ...]

    def __str__(self) -> str:
        return "(" + " ".join([self.name, *map(str, self.arguments)]) + ")"


Pattern = Variable | Literal | Apply


@dataclass(frozen=True, slots=True)
class Equal:
    """The condition that two patterns are one class, or one value of a base sort; or a name for a pattern."""

    left: Pattern
    right: Pattern


Condition = Equal | Apply  # an Apply is a relation, or a primitive that fails where it is false


@dataclass(frozen=True, slots=True)
class Action:
    """What a law does where it applies: `union`, `set`, `let`, `assert` (a relation or term), or `other` that is no claim."""

    kind: str
    arguments: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Law:
    """One rewrite, birewrite or rule; `place` is path:line."""

    name: str
    place: str
    text: str
    form: str
    ruleset: str
    conditions: tuple[Condition, ...]
    actions: tuple[Action, ...]
    subsumes: bool = False

    @property
    def sides(self) -> tuple[Pattern, Pattern] | None:
        """Left and right of a rewrite or birewrite."""
        if self.form == "rule":
            return None
        left, right = self.actions[0].arguments
        return left, right


def variables(pattern: Pattern) -> Iterator[str]:
    """Names of all variables, each as often as it occurs."""
    match pattern:
        case Variable(name):
            yield name
        case Apply(_, arguments):
            for argument in arguments:
                yield from variables(argument)


def applications(pattern: Pattern) -> Iterator[Apply]:
    """The pattern and all below it that apply something, outermost first."""
    if isinstance(pattern, Apply):
        yield pattern
        for argument in pattern.arguments:
            yield from applications(argument)


def patterns(law: Law) -> Iterator[Pattern]:
    """All patterns of a law."""
    yield from _matched(law)
    for action in law.actions:
        yield from action.arguments


def _matched(law: Law) -> Iterator[Pattern]:
    for condition in law.conditions:
        yield from (condition.left, condition.right) if isinstance(condition, Equal) else (condition,)


def ways(law: Law) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    """What a law must find applied before it can match, and what it then applies; a birewrite has two ways."""
    conditions = _applied(_matched(law))
    if law.sides is None:
        return ((conditions, _applied(pattern for action in law.actions for pattern in action.arguments)),)
    left, right = (_applied([side]) for side in law.sides)
    there = (conditions | left, right)
    return (there, (conditions | right, left)) if law.form == "birewrite" else (there,)


def wording(law: Law) -> tuple[str, ...]:
    """What a law says, whatever it is called and whatever names its variables have."""
    names: dict[str, Variable] = {}

    def renamed(pattern: Pattern) -> Pattern:
        match pattern:
            case Variable(name):
                return names.setdefault(name, Variable(f"_{len(names)}"))
            case Apply(name, arguments):
                return Apply(name, tuple(map(renamed, arguments)))
            case Literal():
                return pattern

    actions = [" ".join([action.kind, *(str(renamed(it)) for it in action.arguments)]) for action in law.actions]
    conditions = [
        f"{renamed(it.left)} = {renamed(it.right)}" if isinstance(it, Equal) else str(renamed(it)) for it in law.conditions
    ]
    return (law.form, law.ruleset, str(law.subsumes), *actions, "when", *conditions)


def _applied(some: Iterable[Pattern]) -> frozenset[str]:
    return frozenset(application.name for pattern in some for application in applications(pattern))


def read_law(command: Any, place: str, text: str) -> Law:
    """The law that a RewriteCommand, BiRewriteCommand or RuleCommand states."""
    if isinstance(command, bindings.RuleCommand):
        rule = command.rule
        conditions = tuple(map(_condition, rule.body))
        return Law(rule.name, place, text, "rule", rule.ruleset, conditions, tuple(map(_action, rule.head)))
    rewrite = command.rewrite
    both = isinstance(command, bindings.BiRewriteCommand)
    union = Action("union", (_pattern(rewrite.lhs), _pattern(rewrite.rhs)))
    conditions = tuple(map(_condition, rewrite.conditions))
    form = "birewrite" if both else "rewrite"
    return Law(rewrite.name, place, text, form, command.name, conditions, (union,), not both and command.subsume)


def _pattern(expression: Any) -> Pattern:
    match expression:
        case bindings.Var():
            return Variable(expression.name)
        case bindings.Lit():
            return Literal(getattr(expression.value, "value", None))
        case bindings.Call():
            return Apply(expression.name, tuple(map(_pattern, expression.args)))
        case _:
            raise AssertionError(f"egglog has no expression {expression!r}")


def _condition(fact: Any) -> Condition:
    if isinstance(fact, bindings.Eq):
        return Equal(_pattern(fact.left), _pattern(fact.right))
    pattern = _pattern(fact.expr)
    assert isinstance(pattern, Apply), "egglog's type checker wants a call here"
    return pattern


def _action(action: Any) -> Action:
    match action:
        case bindings.Let():
            return Action("let", (Variable(action.lhs), _pattern(action.rhs)))
        case bindings.Set():
            return Action("set", (Apply(action.lhs, tuple(map(_pattern, action.args))), _pattern(action.rhs)))
        case bindings.Union():
            return Action("union", (_pattern(action.lhs), _pattern(action.rhs)))
        case bindings.Expr_():
            return Action("assert", (_pattern(action.expr),))
        case _:
            return Action("other", ())


@dataclass(frozen=True, slots=True)
class Signature:
    """The sorts of a constructor, relation or function."""

    kind: str
    inputs: tuple[str, ...]
    output: str


def read_signatures(command: Any) -> Mapping[str, Signature]:
    """What a declaration declares."""
    match command:
        case bindings.Constructor():
            return {command.name: Signature("constructor", tuple(command.schema.input), command.schema.output)}
        case bindings.FunctionCommand():
            return {command.name: Signature("function", tuple(command.schema.input), command.schema.output)}
        case bindings.Relation():
            return {command.name: Signature("relation", tuple(command.inputs), "")}
        case bindings.Datatype():
            return _variants(command.name, command.variants)
        case _:
            return {}


def _variants(sort: str, variants: Iterable[Any]) -> Mapping[str, Signature]:
    return {variant.name: Signature("constructor", tuple(variant.types), sort) for variant in variants}
