"""Terms over whole tensors: a variable is a string, an application a tuple of an op and its operands.

The op has its attributes in its name: `Concat 1`, `Split0 0`, `Conv2d relu`. Plain tuples, because there are millions.
"""

from collections.abc import Iterator, Mapping

Term = str | tuple  # type: ignore[type-arg]
Equation = tuple[Term, Term]
NAMES = "xyzuvwabcdefghijklmnopqrst"


def size(term: Term) -> int:
    """The number of different ops: equal subterms count once."""
    return len({part for part in subterms(term) if not isinstance(part, str) and len(part) > 1})


def length(term: Term) -> int:
    """The number of ops and variables of the tree."""
    return 1 if isinstance(term, str) else 1 + sum(length(it) for it in term[1:])


def subterms(term: Term) -> Iterator[Term]:
    """The term and all terms in it, the outermost first; equal ones again."""
    yield term
    if not isinstance(term, str):
        for operand in term[1:]:
            yield from subterms(operand)


def variables(term: Term) -> list[str]:
    """The variables from left to right, with repetitions."""
    return [it for it in subterms(term) if isinstance(it, str)]


def ops(term: Term) -> set[str]:
    """The ops with their attributes."""
    return {it[0] for it in subterms(term) if not isinstance(it, str)}


def renamed(term: Term, names: Mapping[str, str]) -> Term:
    """The term with other names of variables."""
    return names[term] if isinstance(term, str) else (term[0], *(renamed(it, names) for it in term[1:]))


def replaced(term: Term, part: Term, by: Term) -> Term:
    """The term with each occurrence of a subterm replaced."""
    if term == part:
        return by
    return term if isinstance(term, str) else (term[0], *(replaced(it, part, by) for it in term[1:]))


def canonical(left: Term, right: Term) -> Equation:
    """The equation with its variables named in order of appearance; of its two directions the smaller one comes out."""

    def named(first: Term, second: Term) -> Equation:
        seen = dict.fromkeys((*variables(first), *variables(second)))
        names = dict(zip(seen, NAMES, strict=False))
        return renamed(first, names), renamed(second, names)

    return min(named(left, right), named(right, left), key=rank)


def rank(equation: Equation) -> tuple[int | str, ...]:
    """Small and general equations first."""
    left, right = equation
    names = [*variables(left), *variables(right)]
    sizes = size(left), size(right)
    return sum(sizes), max(sizes), length(left) + length(right), -len(set(names)), text(left), text(right)


def text(term: Term) -> str:
    """The term as an S-expression, with the attributes of ops and without shapes."""
    if isinstance(term, str):
        return term
    return f"({' '.join((term[0], *map(text, term[1:])))})"
