"""The claims of a law, evaluated for one assignment: names resolved, side conditions decided, both sides computed.

A law claims that its unions are equal values, that `(set (axes e) A)` names at least the parts that e varies with, that
`above_zero` holds for positive terms only, `not_negative` for those of at least 0, `indicator` for zeros and ones, and that
`below` holds for subterms of terms for which it holds. Other actions have no meaning in the models.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_eg.egraph.expression import CONSTANT, INDEX_TERMS, op_of, parts_in
from mirage_eg.egraph.laws import (
    Apply,
    Equal,
    Law,
    Literal,
    Pattern,
    Signature,
    Variable,
    applications,
    patterns,
    sorts_of,
    variables,
)
from mirage_eg.egraph.primitives import PRIMITIVES
from mirage_eg.egraph.soundness.models import Model, TensorValue, UndefinedError, extent_of
from mirage_eg.ir.errors import RuleError

SORTS = ("E", "String", "i64", "BigRat")  # of variables that an assignment gives random values
FACTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {  # on the entries of a term: in words, and as a test
    "above_zero": ("it is positive", lambda it: it > 0),
    "not_negative": ("it is not negative", lambda it: it >= 0),
    "indicator": ("it is 0 or 1", lambda it: (it == 0) | (it == 1)),
}
MODELLED = ("axes", *FACTS, "below", "part", "members", "extent", "fastest")  # functions and relations
Values = Mapping[str, Any]  # of variables: TensorValue, part, int, Fraction, frozenset of parts


@dataclass(frozen=True, slots=True)
class CheckableLaw:
    """A law ready to be evaluated: the sorts of its free variables, then names of patterns in order, then conditions."""

    law: Law
    variables: Mapping[str, str]
    named: tuple[tuple[str, Pattern], ...]
    conditions: tuple[Equal | Apply, ...]


@dataclass(frozen=True, slots=True)
class FalseClaim:
    """A claim that does not hold, and the two values that refute it."""

    claim: str
    left: Any
    right: Any


def checkable_law(law: Law, signatures: Mapping[str, Signature]) -> CheckableLaw:
    """Separate the free variables of a law from those that its conditions define.

    Raises RuleError: part of the law has no meaning in the models.
    """
    for pattern in patterns(law):
        for application in applications(pattern):
            _check_meaning(law, application.name, signatures)
    for action in law.actions:
        if action.kind == "other":
            raise RuleError(f"{law.place}: delete, subsume and panic have no meaning in a model; wanted union, set or let")
        if action.kind == "set" and not _calls(action.arguments[0], "axes"):
            raise RuleError(f"{law.place}: only the function axes may be set; got {action.arguments[0]}")
    united = [side for union in law.unions for side in union]  # (rewrite x …) is no law, but (union e f) names classes
    sorts = {str(side): "E" for side in united if isinstance(side, Variable)} | sorts_of(patterns(law), signatures)
    definitions = [pair for condition in law.conditions if isinstance(condition, Equal) for pair in _definitions(condition)]
    free = {name for pattern in patterns(law) for name in variables(pattern)} - law.lets.keys()
    assigned = free - {name for name, _ in definitions}
    named: list[tuple[str, Pattern]] = []
    used: set[int] = set()
    while assigned != free:
        ready = [
            i for i, (name, pattern) in enumerate(definitions) if name not in assigned and set(variables(pattern)) <= assigned
        ]
        if ready:
            named.append(definitions[ready[0]])
            used.add(ready[0])
            assigned.add(definitions[ready[0]][0])
        else:  # a cycle: one variable is free, and its definition becomes a condition
            assigned.add(_free_first(law, free - assigned, definitions, sorts))
    names = {name for name, _ in named}
    free_sorts = {}
    for name in sorted(free - names):
        if sorts.get(name) not in SORTS:
            raise RuleError(f"{law.place}: no values can be drawn for the variable {name}; wanted one of the sorts {SORTS}")
        free_sorts[name] = sorts[name]
    conditions = tuple(
        condition
        for condition in law.conditions
        if not (isinstance(condition, Equal) and any(pair in named for pair in _definitions(condition)))
    )
    return CheckableLaw(law, free_sorts, tuple(named), conditions)


def is_expression(name: str) -> bool:
    """Whether a constructor has a value in the models."""
    return op_of(name) is not None or name in INDEX_TERMS or name == CONSTANT


def _free_first(law: Law, names: Iterable[str], definitions: Sequence[tuple[str, Pattern]], sorts: Mapping[str, str]) -> str:
    """The variable of a cycle that becomes free: rather one that is equated with a variable than with an application."""
    applied = {name for name, pattern in definitions if isinstance(pattern, Apply)}
    able = sorted((name for name in names if sorts.get(name) in SORTS), key=lambda name: (name in applied, name))
    if not able:
        raise RuleError(f"{law.place}: no values can be drawn for {', '.join(sorted(names))}; each is defined by another")
    return able[0]


def _definitions(condition: Equal) -> Iterator[tuple[str, Pattern]]:
    for name, pattern in ((condition.left, condition.right), (condition.right, condition.left)):
        if isinstance(name, Variable) and name.name not in variables(pattern):
            yield name.name, pattern


def _calls(pattern: Pattern, name: str) -> bool:
    return isinstance(pattern, Apply) and pattern.name == name


def _check_meaning(law: Law, name: str, signatures: Mapping[str, Signature]) -> None:
    signature = signatures.get(name)
    kind = "primitive" if signature is None else signature.kind
    if kind == "constructor" and is_expression(name):
        return
    if name == "Var":
        raise RuleError(f"{law.place}: law {law.name!r} is about named inputs (Var …), which have no value in the models")
    if name in PRIMITIVES if kind == "primitive" else name in MODELLED:
        return
    raise RuleError(
        f"{law.place}: the {kind} {name} has no meaning in the models, so law {law.name!r} cannot be checked; wanted "
        f"constructors of ops, {', '.join(MODELLED)}, and primitives on numbers, strings and sets"
    )


def false_claim(checkable: CheckableLaw, model: Model, assignment: Values) -> FalseClaim | None:
    """The first claim of the law that these values refute, if any.

    Raises UndefinedError: a side condition fails or a value is undefined: the law claims nothing.
    """
    values = dict(assignment)
    for name, pattern in checkable.named:
        values[name] = evaluate(pattern, model, values)
    for condition in checkable.conditions:
        if not holds(condition, model, values):
            raise UndefinedError("side condition")
    for action in checkable.law.actions:
        match action.kind:
            case "let":
                values[str(action.arguments[0])] = evaluate(action.arguments[1], model, values)
            case "union":
                left, right = (evaluate(argument, model, values) for argument in action.arguments)
                if not model.arithmetic.equal(left.array, right.array):
                    names = " = ".join(map(str, action.arguments))
                    return FalseClaim(names, left, right)
            case "set":
                [subject] = action.arguments[0].arguments  # type: ignore[union-attr]
                value, claimed = evaluate(subject, model, values), evaluate(action.arguments[1], model, values)
                if not model.varies_with(value) <= claimed:
                    return FalseClaim(f"{subject} varies with no more than {action.arguments[1]}", value, claimed)
            case _ if isinstance(fact := action.arguments[0], Apply) and fact.name in FACTS:
                says, is_so = FACTS[fact.name]
                value = evaluate(fact.arguments[0], model, values)
                if not is_so(value.array).all():
                    return FalseClaim(f"{fact}: {says}", value, None)
            case _ if _calls(action.arguments[0], "below"):
                if not _is_below(checkable, action.arguments[0].arguments[0]):  # type: ignore[union-attr]
                    return FalseClaim(f"{action.arguments[0]}: it is no part of anything that is below", None, None)
            case _:
                evaluate(action.arguments[0], model, values)
    return None


def _is_below(checkable: CheckableLaw, pattern: Pattern) -> bool:
    """Whether a pattern is a subterm of a term that the law's conditions call `below`, or a name of one."""
    parts: list[Pattern] = [
        condition.arguments[0]
        for condition in checkable.law.conditions
        if isinstance(condition, Apply) and condition.name == "below"
    ]
    for part in parts:
        if part == pattern:
            return True
        if isinstance(part, Apply):
            parts += part.arguments
        parts += [term for name, term in checkable.named if part == Variable(name) and term not in parts]
    return False


def holds(condition: Equal | Apply, model: Model, values: Values) -> bool:
    """Whether a side condition holds. Raises UndefinedError: it needs an undefined value."""
    if isinstance(condition, Equal):
        left, right = evaluate(condition.left, model, values), evaluate(condition.right, model, values)
        if isinstance(left, TensorValue):
            return model.arithmetic.equal(left.array, right.array)
        return bool(left == right)
    if condition.name in ("below", "part"):
        return True
    if condition.name == "fastest":
        whole, slow, fast = (evaluate(argument, model, values) for argument in condition.arguments)
        return parts_in(whole) == (*parts_in(slow), fast) and fast in model.sizes
    if condition.name in FACTS:
        return bool(FACTS[condition.name][1](evaluate(condition.arguments[0], model, values).array).all())
    if condition.name == "!=" and isinstance(evaluate(condition.arguments[0], model, values), TensorValue):
        return True  # different classes may have equal values: the law must hold for these, too
    return bool(evaluate(condition, model, values))


def evaluate(pattern: Pattern, model: Model, values: Values) -> Any:
    """The value of a pattern."""
    match pattern:
        case Variable(name):
            return values[name]
        case Literal(value):
            return value
        case Apply("axes", (subject,)):
            return evaluate(subject, model, values).axes
        case Apply("members", (index,)):
            return frozenset(parts_in(evaluate(index, model, values)))
        case Apply("extent", (index,)):
            return extent_of(model.sizes, evaluate(index, model, values))
        case Apply(("below" | "part" | "fastest"), _):
            return None
        case Apply(name, arguments):
            operands = [evaluate(argument, model, values) for argument in arguments]
            if name in PRIMITIVES:
                return _primitive(name, operands)
            tensors = [operand for operand in operands if isinstance(operand, TensorValue)]
            return model.apply(name, operands[: len(operands) - len(tensors)], tensors)


def _primitive(name: str, operands: Sequence[Any]) -> Any:
    try:
        return PRIMITIVES[name](*operands)
    except (ArithmeticError, KeyError):  # egglog's primitive fails, and the law claims nothing
        raise UndefinedError(name) from None
