"""Generalization: the most general equation that the normal form still proves.

Common subterms become variables, largest first; then occurrences of a repeated variable get a name of their own, and constants
become variables. So terms over three variables give laws of four.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, product

from mirage_eg.egraph.tensor.normal_form import proved
from mirage_eg.egraph.tensor.term import Equation, Term, canonical, length, replaced, subterms, text, variables
from mirage_eg.egraph.tensor.typing import IllTyped

MOST_OCCURRENCES = 8  # of one variable, that are separated


def holds(equation: Equation) -> bool:
    """Whether the normal form proves an equation, if any shapes fit it."""
    try:
        return proved(equation) is not None
    except IllTyped:
        return False


def generalized(equation: Equation) -> Equation:
    """The most general form of a proved equation, with its variables named in order."""
    return _changed(equation, _candidates, holds)


def abstracted(equation: Equation) -> Equation:
    """The equation with all common subterms as variables, proved or not."""
    return _changed(equation, _abstractions, lambda candidate: True)


def _changed(
    equation: Equation, candidates: Callable[[Equation], Iterator[Equation]], is_allowed: Callable[[Equation], bool]
) -> Equation:
    """The first allowed candidate that is no identity, then that of this one, and so on."""
    found: Equation | None = equation
    while found is not None:
        equation = found
        named = (canonical(*candidate) for candidate in candidates(equation))
        found = next((it for it in named if it[0] != it[1] and is_allowed(it)), None)
    return equation


def _candidates(equation: Equation) -> Iterator[Equation]:
    yield from _abstractions(equation)
    yield from _splits(equation)
    yield from _without_constants(equation)


def _abstractions(equation: Equation) -> Iterator[Equation]:
    left, right = equation
    common = {it for it in subterms(left) if not isinstance(it, str)} & set(subterms(right))
    for part in sorted(common, key=lambda it: (-length(it), text(it))):
        yield replaced(left, part, "new"), replaced(right, part, "new")


def _splits(equation: Equation) -> Iterator[Equation]:
    names = [variables(side) for side in equation]
    for name in dict.fromkeys(names[0]):
        places = [[place for place, it in enumerate(side) if it == name] for side in names]
        if len(places[0]) + len(places[1]) > MOST_OCCURRENCES or min(map(len, places)) == 0 or max(map(len, places)) < 2:
            continue
        for chosen in product(*(_subsets(side) for side in places)):
            if chosen == (places[0], places[1]):
                continue
            yield _with_new(equation[0], set(chosen[0])), _with_new(equation[1], set(chosen[1]))


def _without_constants(equation: Equation) -> Iterator[Equation]:
    left, right = equation
    constants = {it for side in equation for it in subterms(side) if not isinstance(it, str) and len(it) == 1}
    for constant in sorted(constants):
        yield replaced(left, constant, "new"), replaced(right, constant, "new")


def _subsets(places: list[int]) -> list[list[int]]:
    return [list(it) for number in range(1, len(places) + 1) for it in combinations(places, number)]


def _with_new(term: Term, places: set[int]) -> Term:
    """The term with a new name at some of its variables, by their number from the left."""
    numbers = iter(range(len(variables(term))))

    def walk(part: Term) -> Term:
        if isinstance(part, str):
            return "new" if next(numbers) in places else part
        return (part[0], *map(walk, part[1:]))

    return walk(term)
