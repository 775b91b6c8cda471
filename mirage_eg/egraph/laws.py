"""Laws as data: rewrites, birewrites and rules, read once from egglog's commands, to be checked and displayed.

A rewrite `l -> r :when c` is the rule that l and r are one class if c holds.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings


@dataclass(frozen=True, slots=True)
class Variable:
    """A pattern variable."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant of an egglog base sort, and its text in egglog."""

    value: int | float | str | bool | None

    def __str__(self) -> str:
        match self.value:
            case bool():
                return str(self.value).lower()
            case str():
                return '"' + self.value.replace("\\", "\\\\").replace('"', '\\"') + '"'
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
    """The condition that two patterns are one class, or one value of a base sort; or a definition of a variable."""

    left: Pattern
    right: Pattern

    def __str__(self) -> str:
        return f"(= {self.left} {self.right})"


Condition = Equal | Apply  # an Apply is a relation, or a primitive that fails if it is false


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a law: `union`, `set`, `let`, `assert` (a relation or term), or `other`, which claims nothing."""

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
        return self.unions[0]

    @property
    def unions(self) -> tuple[tuple[Pattern, Pattern], ...]:
        """The pairs of patterns that the law makes equal."""
        pairs = (action.arguments for action in self.actions if action.kind == "union")
        return tuple((left, right) for left, right in pairs)

    @property
    def lets(self) -> dict[str, Pattern]:
        """The patterns that actions give names."""
        return {str(action.arguments[0]): action.arguments[1] for action in self.actions if action.kind == "let"}


def variables(pattern: Pattern) -> Iterator[str]:
    """Names of all variables, each as often as it occurs."""
    match pattern:
        case Variable(name):
            yield name
        case Apply(_, arguments):
            for argument in arguments:
                yield from variables(argument)


def sorts_of(all_patterns: Iterable[Pattern], signatures: Mapping[str, Signature]) -> dict[str, str]:
    """The sorts of the variables that are arguments of constructors, relations and functions."""
    return {
        argument.name: sort
        for pattern in all_patterns
        for application in applications(pattern)
        if application.name in signatures
        for argument, sort in zip(application.arguments, signatures[application.name].inputs, strict=False)
        if isinstance(argument, Variable)
    }


def applications(pattern: Pattern) -> Iterator[Apply]:
    """All applications in a pattern, outermost first."""
    if isinstance(pattern, Apply):
        yield pattern
        for argument in pattern.arguments:
            yield from applications(argument)


def sides_of(condition: Condition) -> tuple[Pattern, ...]:
    """The patterns of a condition: both sides of an equality, or the relation or primitive itself."""
    return (condition.left, condition.right) if isinstance(condition, Equal) else (condition,)


def variables_of(condition: Condition) -> Iterator[str]:
    """Names of all variables of a condition."""
    for side in sides_of(condition):
        yield from variables(side)


def replaced(pattern: Pattern, values: Mapping[str, Pattern]) -> Pattern:
    """A pattern with patterns in place of variables."""
    match pattern:
        case Variable(name):
            return values.get(name, pattern)
        case Apply(name, arguments):
            return Apply(name, tuple(replaced(argument, values) for argument in arguments))
        case Literal():
            return pattern


def inlined(pattern: Pattern, names: Mapping[str, Pattern]) -> Pattern:
    """A pattern with patterns in place of variables, also of those in these patterns; no variable is within its own."""
    match pattern:
        case Variable(name) if name in names:
            return inlined(names[name], {other: it for other, it in names.items() if other != name})
        case Apply(name, arguments):
            return Apply(name, tuple(inlined(argument, names) for argument in arguments))
        case _:
            return pattern


def changed(condition: Condition, change: Callable[[Pattern], Pattern]) -> Condition:
    """A condition with changed sides, or arguments."""
    if isinstance(condition, Equal):
        return Equal(change(condition.left), change(condition.right))
    return Apply(condition.name, tuple(map(change, condition.arguments)))


def patterns(law: Law) -> Iterator[Pattern]:
    """All patterns of a law."""
    yield from _matched(law)
    for action in law.actions:
        yield from action.arguments


def _matched(law: Law) -> Iterator[Pattern]:
    for condition in law.conditions:
        yield from sides_of(condition)


def directions(law: Law) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    """Of each direction of a law: the functions that it matches, the functions that it adds. A birewrite has two directions."""
    conditions = _applied(_matched(law))
    if law.sides is None:
        return ((conditions, _applied(pattern for action in law.actions for pattern in action.arguments)),)
    left, right = (_applied([side]) for side in law.sides)
    forward = (conditions | left, right)
    return (forward, (conditions | right, left)) if law.form == "birewrite" else (forward,)


def wording(law: Law) -> tuple[str, ...]:
    """The content of a law: equal for laws that differ in name, place and names of variables only."""
    names: dict[str, Variable] = {}

    def renamed(pattern: Pattern) -> Pattern:
        for name in variables(pattern):
            names.setdefault(name, Variable(f"_{len(names)}"))
        return replaced(pattern, names)

    actions = [" ".join([action.kind, *(str(renamed(argument)) for argument in action.arguments)]) for action in law.actions]
    conditions = [str(changed(condition, renamed)) for condition in law.conditions]
    return (law.form, law.ruleset, str(law.subsumes), *actions, "when", *conditions)


def _applied(all_patterns: Iterable[Pattern]) -> frozenset[str]:
    return frozenset(application.name for pattern in all_patterns for application in applications(pattern))


def read_law(command: Any, place: str, text: str) -> Law:
    """The law of a RewriteCommand, BiRewriteCommand or RuleCommand."""
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
    assert isinstance(pattern, Apply), "egglog's type checker accepts only a call here"
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
    """The signatures of a declaration, by name; of other commands none."""
    match command:
        case bindings.Constructor():
            return {command.name: Signature("constructor", tuple(command.schema.input), command.schema.output)}
        case bindings.FunctionCommand():
            return {command.name: Signature("function", tuple(command.schema.input), command.schema.output)}
        case bindings.Relation():
            return {command.name: Signature("relation", tuple(command.inputs), "")}
        case bindings.Datatype():
            return {variant.name: Signature("constructor", tuple(variant.types), command.name) for variant in command.variants}
        case _:
            return {}
