"""The interface between the synthesis engine and a domain: its operators, their values, and what a law is there.

The engine enumerates terms over *operators*, evaluates them on sampled values, and asks the domain to turn an equal pair of
terms into a law. The values of one term are a row of *columns*: entries of tensors under several samples and sizes. An
undefined entry is not-a-number.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mirage_eg.egraph.laws import Apply, Law, Literal, Pattern, Variable
from mirage_eg.lab.synthesis.term_pair import TermPair

Array = Any  # of NumPy: float64, one row for each term
Type = Hashable  # of a term: terms of one type have the same columns
Progress = Callable[[str, int, int | None, str], None]  # stage, done, total, note


OnLaw = Callable[[str], None]  # the line of a law as soon as it is found, before laws that follow from others are dropped


def no_progress(stage: str, done: int, total: int | None, note: str) -> None:
    """For callers without a display."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A constructor with fixed constants, such as `Sum i`; a variable of the terms is an operator without operands.

    `result` gives the type of the result, or None where the operands have no such op. `apply` maps the values of the operands,
    one row a term, to those of the results.
    """

    name: str
    arity: int
    result: Callable[[tuple[Type, ...]], Type | None]
    apply: Callable[[Sequence[Array]], Array]
    constants: tuple[Variable | Literal | Apply, ...] = ()

    def pattern(self, operands: Sequence[Pattern]) -> Pattern:
        """The term of this operator."""
        return Apply(self.name, (*self.constants, *operands)) if self.arity else Variable(self.name)


class Domain(Protocol):
    """A language of terms with its semantics and its soundness checker."""

    @property
    def name(self) -> str:
        """The domain of rule files."""
        ...

    @property
    def operators(self) -> Sequence[Operator]:
        """Variables first, then by number of operands."""
        ...

    def total_columns(self, of: Type) -> np.ndarray[Any, Any]:
        """Which columns have positive inputs: terms equal there may differ in where they are defined elsewhere."""
        ...

    def mask(self, operator: Operator) -> int:
        """A bit for each variable that the operator holds."""
        ...

    def allowed(self, masks: Array, size: int) -> Array:
        """Which sets of variables a term of a size may have."""
        ...

    def sensible(self, masks: Array, totals: Array) -> Array:
        """Which terms to keep, by their variables and their values in the total columns."""
        ...

    def canonical(self, term: Pattern) -> bool:
        """Whether the variables of a term come in order: every pair has a renaming whose left side is canonical."""
        ...

    def law(self, pair: TermPair) -> Law | None:
        """The law of an pair in the directions that a rule file may use, with its conditions; None if there is no direction."""
        ...
