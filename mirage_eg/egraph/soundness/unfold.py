"""Unfold user constructors and relations of a law into ops, so that the models can test it.

A constructor is defined by the first law without conditions that has it, applied to distinct variables, on one side and only
ops on the other; the definition replaces it in every further law.

A relation means what a rule of the ruleset `meaning` says, which no e-graph runs: that two terms are equal, as
(rule ((positive x)) ((union (Less (Const 0) x) (Const 1))) :ruleset meaning). Each rule that asserts it is tested to imply this
equation, and each law with it as a condition where the equation holds. A relation without a meaning holds exactly where rules
assert it: a law with a condition on it is tested under the conditions of these rules, up to DEPTH of them in a row.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice, product

from mirage_eg.egraph.laws import (
    Action,
    Apply,
    Condition,
    Equal,
    Law,
    Pattern,
    Signature,
    Variable,
    applications,
    changed,
    patterns,
    replaced,
    variables,
    variables_of,
)
from mirage_eg.egraph.rule_errors import MEANING
from mirage_eg.egraph.soundness.claims import MODELLED, is_expression
from mirage_eg.ir.errors import RuleError

DEPTH = 3  # rules in a row that assert a relation
MOST_FORMS = 12  # of a law


@dataclass(frozen=True, slots=True)
class Definition:
    """What a user's constructor or relation stands for: one term, or the two sides of an equation."""

    parameters: tuple[str, ...]
    terms: tuple[Pattern, ...]

    def of(self, arguments: Sequence[Pattern]) -> tuple[Pattern, ...]:
        """Its terms for these arguments."""
        values = dict(zip(self.parameters, arguments, strict=True))
        return tuple(replaced(term, values) for term in self.terms)


def definitions(laws: Iterable[Law], signatures: Mapping[str, Signature]) -> dict[str, Definition]:
    """The constructors that laws define through ops, each by the first such law."""
    equations = [law for law in laws if law.sides is not None and not law.conditions]
    found: dict[str, Definition] = {}
    while (new := next(_new_definitions(equations, signatures, found), None)) is not None:
        name, definition = new
        found[name] = definition  # another definition may use it
    return found


def _new_definitions(
    equations: Sequence[Law], signatures: Mapping[str, Signature], found: Mapping[str, Definition]
) -> Iterator[tuple[str, Definition]]:
    for law in equations:
        assert law.sides is not None
        for head, body in (law.sides, law.sides[::-1]):
            if isinstance(head, Apply) and _defines(head, body, signatures, found):
                yield head.name, Definition(tuple(map(str, head.arguments)), (_inlined(body, found),))


def _defines(head: Apply, body: Pattern, signatures: Mapping[str, Signature], found: Mapping[str, Definition]) -> bool:
    names = [argument.name for argument in head.arguments if isinstance(argument, Variable)]
    return (
        is_foreign(head.name, signatures)
        and head.name not in found
        and len(set(names)) == len(head.arguments)
        and set(variables(body)) <= set(names)
        and not any(is_foreign(part.name, signatures) and part.name not in found for part in applications(body))
    )


def is_foreign(name: str, signatures: Mapping[str, Signature]) -> bool:
    """Whether it is a constructor without an op."""
    return name in signatures and signatures[name].kind == "constructor" and not is_expression(name) and name != "Var"


def declared_relations(laws: Iterable[Law], signatures: Mapping[str, Signature]) -> dict[str, Definition]:
    """The relations that rules of the ruleset `meaning` declare, each by the first such rule."""
    found: dict[str, Definition] = {}
    for law in (it for it in laws if it.ruleset == MEANING):
        match law.conditions, law.actions:
            case (Apply(name, arguments),), (Action("union", (left, right)),) if _is_user_relation(name, signatures):
                names = [it.name for it in arguments if isinstance(it, Variable)]
                if len(set(names)) == len(arguments) and {*variables(left), *variables(right)} <= set(names):
                    found.setdefault(name, Definition(tuple(names), (left, right)))
    return found


def _is_user_relation(name: str, signatures: Mapping[str, Signature]) -> bool:
    return name in signatures and signatures[name].kind == "relation" and name not in MODELLED


def _inlined(pattern: Pattern, found: Mapping[str, Definition]) -> Pattern:
    """A pattern with definitions inlined."""
    match pattern:
        case Apply(name, arguments):
            inner = tuple(_inlined(argument, found) for argument in arguments)
            return found[name].of(inner)[0] if name in found else Apply(name, inner)
        case _:
            return pattern


def unfolded(law: Law, laws: Sequence[Law], signatures: Mapping[str, Signature]) -> tuple[Law, ...]:
    """The forms of a law with ops only; the law itself if it has no user constructors or relations.

    Raises RuleError: a constructor is defined by no law, or a relation is asserted by no rule.
    """
    names = {part.name for part in _parts(law)}
    if not any(is_foreign(name, signatures) or _is_user_relation(name, signatures) for name in names):
        return (law,)
    found, declared = definitions(laws, signatures), declared_relations(laws, signatures)
    own = {name for name in signatures if _is_user_relation(name, signatures)}
    law = _with_equations(law, declared)
    forms = list(islice(_derived(law, laws, own), MOST_FORMS))
    if not forms:
        [name, *_] = [it.name for it in law.conditions if isinstance(it, Apply) and it.name in own]
        raise RuleError(
            f"{law.place}: law {law.name!r} asks for the relation {name}, which no rule asserts in {DEPTH} steps from ops, so "
            "that it never applies"
        )
    for part in {it.name: it for form in forms for it in _parts(form)}.values():
        if is_foreign(part.name, signatures) and part.name not in found:
            raise RuleError(
                f"{law.place}: the constructor {part.name} has no meaning in the models, so law {law.name!r} cannot be "
                f"checked; wanted a law that defines it through ops, as (rewrite ({part.name} …) …) with distinct variables "
                "and no conditions, or an op registered under its name (--ops FILE.py)"
            )
    return tuple(_map(form, found, own) for form in forms)


def _with_equations(law: Law, declared: Mapping[str, Definition]) -> Law:
    """A law with the equations of declared relations in place of the relations, in conditions and in what it asserts."""

    def equated(it: Condition) -> Condition:
        return Equal(*declared[it.name].of(it.arguments)) if isinstance(it, Apply) and it.name in declared else it

    conditions = tuple(map(equated, law.conditions))
    asserted = [(it, _asserted(it, {*declared})) for it in law.actions]
    actions = tuple(
        it if applied is None else Action("union", declared[applied.name].of(applied.arguments)) for it, applied in asserted
    )
    return replace(law, conditions=conditions, actions=actions)


def _parts(law: Law) -> Iterator[Apply]:
    for pattern in patterns(law):
        yield from applications(pattern)


def _map(law: Law, found: Mapping[str, Definition], own: set[str]) -> Law:
    """A form with definitions inlined; an assertion of a user's relation is no claim."""
    conditions = tuple(changed(it, lambda pattern: _inlined(pattern, found)) for it in law.conditions)
    actions = (Action("assert", applied.arguments) if (applied := _asserted(it, own)) is not None else it for it in law.actions)
    written = tuple(Action(it.kind, tuple(_inlined(argument, found) for argument in it.arguments)) for it in actions)
    return replace(law, conditions=conditions, actions=written)


def _asserted(action: Action, own: set[str]) -> Apply | None:
    match action:
        case Action("assert", (Apply(name, _) as applied,)) if name in own:
            return applied
        case _:
            return None


def _derived(law: Law, laws: Sequence[Law], own: set[str]) -> Iterator[Law]:
    """The law with each condition on a relation replaced by the conditions of a rule that asserts it, in all combinations,
    those of the fewest rules first."""
    fresh = count()
    waiting = deque([(law, 0)])
    while waiting:
        form, steps = waiting.popleft()
        open_ = [it for it in form.conditions if isinstance(it, Apply) and it.name in own]
        if not open_:
            yield form
        elif steps < DEPTH:
            kept = tuple(it for it in form.conditions if it not in open_)
            for choice in islice(product(*(list(_reasons(it, laws, own)) for it in open_)), MOST_FORMS):
                reasons = [_renamed(it, *reason, next(fresh)) for it, reason in zip(open_, choice, strict=True)]
                waiting.append((replace(form, conditions=kept + tuple(chain.from_iterable(reasons))), steps + 1))


def _reasons(condition: Apply, laws: Sequence[Law], own: set[str]) -> Iterator[tuple[Law, Apply]]:
    for rule in laws:
        for action in rule.actions:
            assertion = _asserted(action, own)
            if assertion is not None and assertion.name == condition.name:
                yield rule, assertion


def _renamed(condition: Apply, rule: Law, assertion: Apply, number: int) -> tuple[Condition, ...]:
    """A rule's conditions with fresh variables, and the equation of its assertion with the condition."""
    names = {name for part in (*rule.conditions, assertion) for name in variables_of(part)} | {
        n for it in rule.lets.values() for n in variables(it)
    }
    own = {name: Variable(f"{name}_{number}") for name in sorted(names)}

    def put(pattern: Pattern) -> Pattern:
        return replaced(replaced(pattern, rule.lets), own)

    conditions: list[Condition] = [
        Equal(mine, put(theirs)) for mine, theirs in zip(condition.arguments, assertion.arguments, strict=True)
    ]
    conditions += (changed(it, put) for it in rule.conditions)
    return tuple(conditions)
