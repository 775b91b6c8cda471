"""Pairs of equal terms, as the enumeration finds them, and the operators over which it goes.

The values of one term are a row of *columns*: entries of tensors under several samples and sizes. An undefined entry is
not-a-number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_eg.egraph.laws import Apply, Literal, Pattern, Variable, variables

Array = Any  # of NumPy: float64, one row for each term
Progress = Callable[[str, int, int | None, str], None]  # stage, done, total, note
OnLaw = Callable[[str], None]  # the line of a law as soon as it is found, before laws that follow from others are dropped


def no_progress(stage: str, done: int, total: int | None, note: str) -> None:
    """For callers without a display."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A constructor with fixed constants, such as `Sum i`; a variable of the terms is an operator without operands.

    `apply` maps the values of the operands, one row a term, to those of the results.
    """

    name: str
    arity: int
    apply: Callable[[Sequence[Array]], Array]
    constants: tuple[Variable | Literal | Apply, ...] = ()

    def pattern(self, operands: Sequence[Pattern]) -> Pattern:
        """The term of this operator."""
        return Apply(self.name, (*self.constants, *operands)) if self.arity else Variable(self.name)


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
