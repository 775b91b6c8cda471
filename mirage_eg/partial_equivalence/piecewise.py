"""Equality of piecewise polynomial elements: minima, maxima, comparisons and selections, by cases, exactly.

Each case says of which sign a form is; within it a maximum is one of its operands and a comparison 0 or 1. Ties are cases of
their own. A case that no numbers fit is left out (Fourier and Motzkin); monomials count as independent numbers there, which
only adds cases. True is a proof over the real numbers; False only says that none was found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mirage_eg.ir.linear import plus
from mirage_eg.ir.node import Node
from mirage_eg.partial_equivalence.sums_of_products import Access, Product

Monomial = tuple[Any, ...]  # atoms, sorted; empty for the constant
Form = Mapping[Monomial, Fraction]
MOST_CASES = 600
MOST_CONSTRAINTS = 120


@dataclass(frozen=True, slots=True)
class Constraint:
    """A form that is above 0, or not below."""

    form: Form
    strict: bool


Constraints = tuple[Constraint, ...]
Branch = tuple[Constraints, Form]  # the value of a function under some constraints


class GivenUp(Exception):
    """Too many cases, or sums over an axis."""


def _times(one: Form, other: Form) -> Form:
    total: Form = {}
    for left, number in one.items():
        for right, factor in other.items():
            total = plus(total, {tuple(sorted((*left, *right), key=repr)): number * factor})
    return total


def _number(value: Fraction | int) -> Form:
    return {(): Fraction(value)} if value else {}


def _above(one: Form, other: Form) -> Constraint:
    return Constraint(plus(one, other, -1), strict=True)


def _at_least(one: Form, other: Form) -> Constraint:
    return Constraint(plus(one, other, -1), strict=False)


def _ordered(x: Form, y: Form, larger: Form, smaller: Form) -> Iterator[Branch]:
    """Two values, where x ≥ y and where x < y."""
    yield (_at_least(x, y),), larger
    yield (_above(y, x),), smaller


def _equal(x: Form, y: Form, same: Form, other: Form) -> Iterator[Branch]:
    yield (_at_least(x, y), _at_least(y, x)), same
    yield (_above(x, y),), other
    yield (_above(y, x),), other


def _clamp(x: Form, low: Form, high: Form) -> Iterator[Branch]:
    yield (_above(low, x), _at_least(high, low)), low
    yield (_at_least(x, low), _at_least(high, x)), x
    yield (_above(x, high),), high


_ZERO: Form = {}
_ONE = _number(1)
_CASES: Mapping[str, Callable[[Node, Sequence[Form]], Iterator[Branch]]] = {
    "relu": lambda item, x: _ordered(x[0], _ZERO, x[0], _ZERO),
    "abs": lambda item, x: _ordered(x[0], _ZERO, x[0], plus(_ZERO, x[0], -1)),
    "maximum": lambda item, x: _ordered(x[0], x[1], x[0], x[1]),
    "minimum": lambda item, x: _ordered(x[0], x[1], x[1], x[0]),
    "less": lambda item, x: _ordered(x[0], x[1], _ZERO, _ONE),
    "less_equal": lambda item, x: _ordered(x[1], x[0], _ONE, _ZERO),
    "equal": lambda item, x: _equal(x[0], x[1], _ONE, _ZERO),
    "where": lambda item, x: _equal(x[0], _ZERO, x[2], x[1]),
    "clamp": lambda item, x: _clamp(x[0], _number(item["low"]), _number(item["high"])),
}


@dataclass(slots=True)
class _Cases:
    applications: Mapping[Access, tuple[Node, Sequence[Sequence[Product]]]]
    count: int = 0

    def form(self, terms: Sequence[Product]) -> Form:
        """A sum of products as a polynomial of accesses."""
        total: Form = {}
        for term in terms:
            if term.sums:
                raise GivenUp
            total = plus(total, {tuple(sorted(term.accesses, key=repr)): term.coefficient})
        return total

    def vanishes(self, form: Form, known: Mapping[Access, Form], constraints: Constraints) -> bool:
        """Whether the form is 0 in every case that the constraints leave."""
        self.count += 1
        if self.count > MOST_CASES:
            raise GivenUp
        form = self.resolved(form, known)
        access = next((it for monomial in form for it in monomial if self.is_piecewise(it)), None)
        if access is None:
            if not form:
                return True
            signs = (Constraint(form, strict=True), Constraint(plus(_ZERO, form, -1), strict=True))
            return not any(possible((*constraints, sign)) for sign in signs)
        inner = access
        while (deeper := self.unresolved(inner, known)) is not None:
            inner = deeper
        item, operands = self.applications[inner]
        values = [self.resolved(self.form(it), known) for it in operands]
        for added, value in _CASES[item.op](item, values):
            case = (*constraints, *added)
            if possible(case) and not self.vanishes(form, {**known, inner: value}, case):
                return False
        return True

    def is_piecewise(self, access: Any) -> bool:
        return access in self.applications and self.applications[access][0].op in _CASES

    def unresolved(self, access: Access, known: Mapping[Access, Form]) -> Access | None:
        """A piecewise function in the operands of another one, that no case decides yet."""
        for operand in self.applications[access][1]:
            form = self.resolved(self.form(operand), known)
            for it in (it for monomial in form for it in monomial if self.is_piecewise(it)):
                return it  # type: ignore[no-any-return]
        return None

    def resolved(self, form: Form, known: Mapping[Access, Form]) -> Form:
        """The form with the functions that the case decides replaced by their values."""
        while decided := next((it for monomial in form for it in monomial if it in known), None):
            total: Form = {}
            for monomial, number in form.items():
                value: Form = {(): number}
                for it in monomial:
                    value = _times(value, known[it] if it == decided else {(it,): Fraction(1)})
                total = plus(total, value)
            form = total
        return form


def possible(constraints: Constraints) -> bool:
    """Whether some numbers in place of the monomials fit all constraints; True also where that takes too long to decide."""
    waiting = list(constraints)
    while True:
        for it in waiting:
            constant = it.form.get((), Fraction(0))
            if not set(it.form) - {()} and (constant < 0 or (it.strict and constant == 0)):
                return False
        waiting = [it for it in waiting if set(it.form) - {()}]
        if not waiting or len(waiting) > MOST_CONSTRAINTS:
            return True
        chosen = min((key for it in waiting for key in it.form if key != ()), key=repr)
        low = [it for it in waiting if it.form.get(chosen, 0) > 0]
        high = [it for it in waiting if it.form.get(chosen, 0) < 0]
        rest = [it for it in waiting if chosen not in it.form]
        for one in low:
            for other in high:
                scaled = plus(_ZERO, one.form, -other.form[chosen])
                rest.append(Constraint(plus(scaled, other.form, one.form[chosen]), one.strict or other.strict))
        waiting = rest


def equal_by_cases(
    x: Sequence[Product], y: Sequence[Product], applications: Mapping[Access, tuple[Node, Sequence[Sequence[Product]]]]
) -> bool:
    """Whether two sums of products are shown equal for all real inputs; `applications` has the functions among the accesses."""
    cases = _Cases(applications)
    try:
        return cases.vanishes(plus(cases.form(x), cases.form(y), -1), {}, ())
    except GivenUp:
        return False
