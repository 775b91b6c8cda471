"""Pairs of equal terms, as the enumeration finds them."""

from dataclasses import dataclass

from mirage_eg.egraph.laws import Apply, Pattern, variables


@dataclass(frozen=True, slots=True)
class TermPair:
    """Two terms of equal values; `forward` and `backward` are the directions that keep every defined value defined.

    The right side represents the class of both.
    """

    left: Pattern
    right: Pattern
    forward: bool = True
    backward: bool = True


def ops(term: Pattern) -> int:
    """The number of constructors in a term."""
    match term:
        case Apply(name, arguments):
            return name[0].isupper() + sum(map(ops, arguments))
        case _:
            return 0


def rank(pair: TermPair, conditions: int = 0) -> tuple[int | str, ...]:
    """Small and general pairs first: ops of both sides, ops of the larger, conditions, different variables, the text."""
    left, right = ops(pair.left), ops(pair.right)
    names = [*variables(pair.left), *variables(pair.right)]
    return left + right, max(left, right), conditions, -len(set(names)), len(names), f"{pair.left} = {pair.right}"
