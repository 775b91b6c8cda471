"""Laws as equations of two patterns under conditions: the reading of a law that proofs and their checker share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mirage_eg.egraph.expression import Tree
from mirage_eg.egraph.laws import (
    Apply,
    Condition,
    Equal,
    Law,
    Literal,
    Pattern,
    Signature,
    Variable,
    changed,
    replaced,
    variables,
)
from mirage_eg.egraph.primitives import PRIMITIVES

Values = Mapping[str, Any]  # of variables: a Tree, or a constant or set of a base sort


class UnboundError(Exception):
    """A pattern has a variable without a value."""


@dataclass(frozen=True, slots=True)
class Equation:
    """One equation of a law; it holds wherever the conditions do. `bidirectional`: saturation also rewrites right to left."""

    law: str
    left: Pattern
    right: Pattern
    conditions: tuple[Condition, ...]
    bidirectional: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of both sides, each once."""
        return tuple(dict.fromkeys([*variables(self.left), *variables(self.right)]))


def equations(law: Law, signatures: Mapping[str, Signature]) -> tuple[Equation, ...]:
    """The equations that a law claims: one of a rewrite, one for each `union` of a rule.

    A variable of a side that a condition defines by a constructor, as e in `(= e (Exp x))`, is replaced by its definition.
    """
    return tuple(_equation(law, union, signatures) for union in law.unions)


def _equation(law: Law, union: tuple[Pattern, Pattern], signatures: Mapping[str, Signature]) -> Equation:
    left, right = (replaced(side, law.lets) for side in union)
    conditions = list(law.conditions)
    while (found := _next_definition(conditions, (left, right), signatures)) is not None:
        condition, name, pattern = found
        conditions.remove(condition)
        left, right = (replaced(side, {name: pattern}) for side in (left, right))
        conditions = [changed(it, partial(replaced, values={name: pattern})) for it in conditions]
    return Equation(law.name, left, right, tuple(conditions), law.form == "birewrite")


def _next_definition(
    conditions: Sequence[Condition], sides: tuple[Pattern, Pattern], signatures: Mapping[str, Signature]
) -> tuple[Condition, str, Pattern] | None:
    """A condition that defines a variable of a side; one on another term of the e-graph stays a condition."""
    names = {name for side in sides for name in variables(side)}
    for condition in conditions:
        pairs = [(condition.left, condition.right), (condition.right, condition.left)] if isinstance(condition, Equal) else []
        for name, pattern in pairs:
            is_definition = isinstance(name, Variable) and is_constructed(pattern, signatures)
            if is_definition and str(name) in names - set(variables(pattern)):
                return condition, str(name), pattern
    return None


def is_constructed(pattern: Pattern, signatures: Mapping[str, Signature]) -> bool:
    """Whether a pattern is a term with a constructor at its root."""
    return isinstance(pattern, Apply) and pattern.name in signatures and signatures[pattern.name].kind == "constructor"


def instance(pattern: Pattern, values: Values, signatures: Mapping[str, Signature]) -> Any:
    """The tree or constant of a pattern of constructors and primitives.

    Raises:
        UnboundError: a variable has no value.
        ArithmeticError: a primitive fails.
    """
    match pattern:
        case Variable(name):
            if name not in values:
                raise UnboundError(name)
            return values[name]
        case Literal(value):
            return value
        case Apply(name, arguments):
            parts = [instance(argument, values, signatures) for argument in arguments]
            if is_constructed(pattern, signatures):
                return (name, *parts)
            if name not in PRIMITIVES:
                raise UnboundError(name)
            return PRIMITIVES[name](*parts)


def match_tree(pattern: Pattern, value: Any, values: dict[str, Any], signatures: Mapping[str, Signature]) -> bool:
    """Whether a pattern is a tree or constant for some values of its variables; they are added to `values`."""
    match pattern:
        case Variable(name):
            return bool(values.setdefault(name, value) == value)
        case Apply(name, arguments) if is_constructed(pattern, signatures):
            tree: Tree = value
            if not isinstance(value, tuple) or tree[0] != name or len(tree) != len(arguments) + 1:
                return False
            return all(
                match_tree(argument, part, values, signatures) for argument, part in zip(arguments, tree[1:], strict=True)
            )
        case _:
            try:
                return bool(instance(pattern, values, signatures) == value)
            except (UnboundError, ArithmeticError):
                return False
