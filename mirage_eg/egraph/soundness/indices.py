"""Indices in the model of the indexed domain: slices, concatenations, and reductions over an index of several parts.

An index is named by its parts, the slowest first: "i·j". The index "" has one value. The laws are in
`rules/indexed/35_slices.egg`.
"""

from collections.abc import Iterator, Mapping
from math import prod
from random import Random
from typing import Any

from mirage_eg.egraph.expression import INDEX_TERMS, parts_in
from mirage_eg.egraph.laws import Apply, Literal, Pattern, Variable, applications, patterns
from mirage_eg.egraph.soundness.claims import CheckableLaw
from mirage_eg.egraph.soundness.models import extent_of

PARTS = ("i", "j", "k", "l")
_INDICES = ("", *PARTS, "i·j", "j·k", "k·l", "l·i", "j·i")
_ATTEMPTS = 200  # at indices that fit a law's concatenations
_MOST_ENTRIES = 27


def uses_indices(checkable: CheckableLaw) -> bool:
    """Whether a law has slices, concatenations or reductions over an index."""
    return any(application.name in INDEX_TERMS for application in _applied(checkable))


def fitting(checkable: CheckableLaw, random: Random) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes of the parts, and indices and numbers for a law's variables, such that its terms have a meaning as a rule."""
    strings = [name for name, sort in checkable.variables.items() if sort == "String"]
    for _ in range(_ATTEMPTS):
        names = {name: random.choice(_INDICES) for name in strings}
        for condition in (it for it in _applied(checkable) if it.name == "fastest"):
            _make_composed(condition, names, random)
        sizes: dict[str, int] = {}
        for part in random.sample(PARTS, len(PARTS)):
            sizes[part] = min(random.choice((1, 2, 2, 3, 4)), max(1, _MOST_ENTRIES // prod(sizes.values())))
        joins = [it for it in _applied(checkable) if it.name == "Concat"]
        if all(_make_fit(join, names, sizes) for join in joins) and prod(sizes.values()) <= 2 * _MOST_ENTRIES:
            break
    return {part: sizes[part] for part in PARTS}, {**names, **_numbers(checkable, names, sizes, random)}


def _applied(checkable: CheckableLaw) -> Iterator[Apply]:
    return (application for pattern in patterns(checkable.law) for application in applications(pattern))


def _make_composed(condition: Apply, names: dict[str, str], random: Random) -> None:
    """Choose the indices of (fastest i a b): i is a and b."""
    whole, slow, fast = map(str, condition.arguments)
    names[fast] = random.choice(PARTS)
    names[slow] = random.choice(["", *(part for part in PARTS if part != names[fast])])
    names[whole] = "·".join(filter(None, (names[slow], names[fast])))


def _make_fit(join: Apply, names: Mapping[str, str], sizes: dict[str, int]) -> bool:
    """Whether a concatenation's index has as many values as both of its operands' together; one part is resized for it."""
    found = [index for argument in join.arguments[:3] if (index := _value(argument, names)) is not None]
    if len(found) < 3:
        return True
    whole, first, second = map(parts_in, found)
    wanted = extent_of(sizes, found[1]) + extent_of(sizes, found[2])
    if whole and whole[0] not in (*first, *second):
        rest = prod(sizes[part] for part in whole[1:])
        if wanted % rest == 0:
            sizes[whole[0]] = wanted // rest
    return extent_of(sizes, found[0]) == wanted


def _numbers(checkable: CheckableLaw, names: Mapping[str, str], sizes: Mapping[str, int], random: Random) -> dict[str, int]:
    """Numbers for the variables of a law: where slices start, their steps, and where concatenations join."""
    numbers: dict[str, int] = {}
    for term in _applied(checkable):
        if term.name == "Concat" and isinstance(place := term.arguments[3], Variable):
            numbers.setdefault(place.name, extent_of(sizes, str(_value(term.arguments[1], names))))
        elif term.name == "Slice":
            source, target = (extent_of(sizes, str(_value(index, names))) for index in term.arguments[:2])
            start, step = term.arguments[2:4]
            steps = 1 if isinstance(step, Literal) else random.choice([1, 1, 2, 3])
            steps = numbers.setdefault(step.name, steps) if isinstance(step, Variable) else steps
            if isinstance(start, Variable):
                numbers.setdefault(start.name, random.randint(0, max(0, source - 1 - steps * (target - 1))))
    others = [name for name, sort in checkable.variables.items() if sort == "i64" and name not in numbers]
    return numbers | {name: random.randint(1, 4) for name in others}


def _value(pattern: Pattern, names: Mapping[str, str]) -> str | None:
    match pattern:
        case Variable(name):
            return names.get(name)
        case Literal(str() as value):
            return value
        case _:
            return None
