"""Do the conditions of a law hold for given terms? Decided on the terms alone, without an e-graph.

A relation holds for a term if a rule asserts it and the conditions of the rule hold for the term, and a function such as `axes`
has the values that rules set. Trusted for the word `proved` of a proof chain.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from mirage_eg.egraph.equations import UnboundError, instance, is_constructed, match_tree
from mirage_eg.egraph.expression import Tree, parts_in
from mirage_eg.egraph.laws import Apply, Condition, Equal, Law, Literal, Pattern, Signature, Variable, replaced, variables
from mirage_eg.egraph.primitives import PRIMITIVES

_Bound = dict[str, Any]


class SideConditions:
    """Facts about terms by the rules of a rulebook; `free` has the parts of axes of each input, `extents` sizes of parts.

    `context` are the terms of the claim: a rule that asserts a relation for a subterm, as of the condition of a choice, is
    applied to them.
    """

    def __init__(
        self,
        laws: Sequence[Law],
        signatures: Mapping[str, Signature],
        free: Mapping[str, frozenset[str]],
        context: Sequence[Tree] = (),
        extents: Mapping[str, int] | None = None,
    ) -> None:
        self.signatures, self.free, self.extents = signatures, free, extents or {}
        self._context = [*_subterms(context)]
        self._asserting: dict[str, list[tuple[Law, tuple[Pattern, ...], Pattern | None]]] = {}
        for law in laws:
            lets = law.lets
            for action in (it for it in law.actions if it.kind in ("assert", "set")):
                head, *value = (replaced(argument, lets) for argument in action.arguments)
                if isinstance(head, Apply):
                    entry = law, head.arguments, value[0] if value else None
                    self._asserting.setdefault(head.name, []).append(entry)
        self._memo: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # keys name trees by id; the values keep them alive

    def solutions(self, conditions: Sequence[Condition], values: Mapping[str, Any]) -> Iterator[_Bound]:
        """The values, with those of the variables that the conditions define, for which all conditions hold."""
        if not conditions:
            yield dict(values)
            return
        for search in (self._found, self._in_context):  # a term of which nothing is known yet comes last
            for position, condition in enumerate(conditions):
                found = search(condition, values)
                if found is not None:
                    for bound in found:
                        yield from self.solutions([*conditions[:position], *conditions[position + 1 :]], bound)
                    return

    def axes(self, term: Tree) -> frozenset[str]:
        """The parts of axes that a term may vary with, as far as rules say."""
        found = self._fact("axes", [term])
        return found if isinstance(found, frozenset) else frozenset()

    def _found(self, condition: Condition, values: Mapping[str, Any]) -> list[_Bound] | None:
        """The values for which one condition holds; None if its variables have no values yet."""
        if isinstance(condition, Equal):
            for known, other in ((condition.left, condition.right), (condition.right, condition.left)):
                if self._is_known(known, values):
                    return self._matched(known, other, values)
            sides = (condition.left, condition.right)
            begun = any(name in values for side in sides if is_constructed(side, self.signatures) for name in variables(side))
            return self._in_context(condition, values) if begun else None
        if not self._is_known(condition, values):
            return None
        arguments = [self._value(argument, values) for argument in condition.arguments]
        if None in arguments:
            return []
        if condition.name in PRIMITIVES:
            holds = _primitive(condition.name, arguments)
        else:
            holds = self._fact(condition.name, arguments)
        return [] if holds is None or holds is False else [dict(values)]

    def _matched(self, known: Pattern, other: Pattern, values: Mapping[str, Any]) -> list[_Bound]:
        value, bound = self._value(known, values), dict(values)
        if value is None:
            return []
        if self._is_known(other, values):
            return [bound] if self._value(other, values) == value else []
        return [bound] if match_tree(other, value, bound, self.signatures) else []

    def _in_context(self, condition: Condition, values: Mapping[str, Any]) -> list[_Bound] | None:
        """Matches of an equation of terms with those of the claim; None of another condition."""
        if not isinstance(condition, Equal) or not any(
            is_constructed(it, self.signatures) for it in (condition.left, condition.right)
        ):
            return None
        found = []
        for term in self._context:
            bound = dict(values)
            if all(match_tree(side, term, bound, self.signatures) for side in (condition.left, condition.right)):
                found.append(bound)
        return found

    def _is_known(self, pattern: Pattern, values: Mapping[str, Any]) -> bool:
        return all(name in values for name in variables(pattern))

    def _value(self, pattern: Pattern, values: Mapping[str, Any]) -> Any:
        """The value of a pattern; None where it has none."""
        match pattern:
            case Variable(name):
                return values[name]
            case Literal(value):
                return value
            case Apply(name, arguments):
                if is_constructed(pattern, self.signatures):
                    try:
                        return instance(pattern, values, self.signatures)
                    except (UnboundError, ArithmeticError):
                        return None
                parts = [self._value(argument, values) for argument in arguments]
                if any(part is None for part in parts):
                    return None
                return _primitive(name, parts) if name in PRIMITIVES else self._fact(name, parts)

    def _fact(self, name: str, arguments: Sequence[Any]) -> Any:
        """True if a relation holds, or the value of a function; None if no rule says so."""
        match name, arguments:
            case "axes", [("Var", str(variable))]:
                return self.free.get(variable)
            case "members", [str(index)]:
                return frozenset(parts_in(index))
            case "extent", [str(index)] if all(part in self.extents for part in parts_in(index)):
                return prod(self.extents[part] for part in parts_in(index))
            case "fastest", [str(index), str(slow), str(fast)]:
                return parts_in(index) == (*parts_in(slow), fast)
        key = (name, *(id(it) if isinstance(it, tuple) else it for it in arguments))
        if key not in self._memo:
            self._memo[key] = arguments, None  # a fact is no reason for itself
            self._memo[key] = arguments, self._derived(name, arguments)
        return self._memo[key][1]

    def _derived(self, name: str, arguments: Sequence[Any]) -> Any:
        result: Any = None
        for law, patterns, value in self._asserting.get(name, ()):
            bound: _Bound = {}
            if not all(match_tree(it, given, bound, self.signatures) for it, given in zip(patterns, arguments, strict=True)):
                continue
            for solution in self.solutions(law.conditions, bound):
                if value is None:
                    return True
                new = self._value(value, solution)
                if new is None:
                    continue
                if isinstance(new, frozenset) and isinstance(result, frozenset):
                    new &= result  # as `:merge (set-intersect old new)`
                elif result is not None and result != new:
                    return None  # another merge is not known here
                result = new
        return result


def _primitive(name: str, arguments: Sequence[Any]) -> Any:
    try:
        return PRIMITIVES[name](*arguments)
    except (ArithmeticError, KeyError):  # egglog's primitive fails, and the law does not apply
        return None


def _subterms(trees: Sequence[Tree]) -> Iterator[Tree]:
    seen: set[int] = set()
    waiting = list(trees)
    while waiting:
        tree = waiting.pop()
        if id(tree) not in seen:
            seen.add(id(tree))
            yield tree
            waiting += (part for part in tree[1:] if isinstance(part, tuple))
