"""Assignments at which the operands of a comparison are equal although no rational makes them so: x² = 2, exp x = 3.

Between two points of a line whose differences have other signs, the difference of the operands is zero: regula falsi (Illinois)
encloses the point to all digits of the arithmetic that confirms a refutation. Where the difference only touches zero, its
central difference changes sign instead. A rational of so many digits stands for the point (`assignments.is_rounded`), and its
arithmetic takes numbers for equal that agree in half of the digits.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

import mpmath
import numpy as np

from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Pattern
from mirage_eg.egraph.soundness.assignments import RandomAssignments, Sizes, Values, constants_of, is_rounded, value_in
from mirage_eg.egraph.soundness.boundaries import Boundaries, Line, Pair, grid_of, line_through, number_at, signs_of
from mirage_eg.egraph.soundness.claims import evaluate
from mirage_eg.egraph.soundness.models import ManyDigits, Model, UndefinedError, as_mpf
from mirage_eg.ir.op.elementwise import COMPARISONS

POINTS = 12  # of a law
_LINES = 24  # tried for them
_OF_A_LINE = 3
_STEPS = 100  # of regula falsi: the number of right digits grows by half in each after the first


def irrational_points(
    boundaries: Boundaries, generated: RandomAssignments, random: Random, arithmetic: ManyDigits
) -> Iterator[tuple[Sizes, Values]]:
    """Up to POINTS assignments, their numbers with the digits of `arithmetic`."""
    unbounded = replace(arithmetic, most_bits=None)  # the difference of nearly equal numbers is no overflow
    compared = [term.arguments for _, term in boundaries.steps if op_of(term.name) in COMPARISONS]
    pairs = list(dict.fromkeys((left, right) for left, right in compared if left != right))
    remaining = POINTS
    for _ in range(_LINES if pairs else 0):
        line = line_through(*boundaries.start(generated, random), random)
        if line is None or not remaining:
            return
        for pair in random.sample(pairs, min(len(pairs), _OF_A_LINE)):
            for point in _points(boundaries, line, pair, random, unbounded):
                if is_rounded(point) and remaining:
                    remaining -= 1
                    yield line.at(point)


def _points(boundaries: Boundaries, line: Line, pair: Pair, random: Random, arithmetic: ManyDigits) -> Iterator[Fraction]:
    grid = number_at(grid_of(constants_of(boundaries.checkable)))
    differences, _ = boundaries.values(line, [pair], grid)
    if not len(differences):
        return
    signs, sizes = signs_of(differences), np.abs(differences)
    passed = [(row, at, at + 1) for row, at in np.argwhere(signs[:, 1:] * signs[:, :-1] == -1)]
    with np.errstate(invalid="ignore"):
        touched = np.argwhere((sizes[:, 1:-1] < sizes[:, :-2]) & (sizes[:, 1:-1] <= sizes[:, 2:]))
    places = [(False, *it) for it in passed] + [(True, row, at, at + 2) for row, at in touched]
    for touches, row, low, high in random.sample(places, min(len(places), _OF_A_LINE)):
        difference = _Difference(boundaries, line, pair, int(row), arithmetic)
        with suppress(UndefinedError, ZeroDivisionError), mpmath.workdps(arithmetic.digits):
            function = difference.central if touches else difference
            point = _zero(function, mpmath.mpf(float(grid[low])), mpmath.mpf(float(grid[high])), arithmetic.digits)
            if point is not None and abs(difference(point)) <= arithmetic.least:
                yield _exact(point)


@dataclass(frozen=True, slots=True)
class _Difference:
    """One entry of the difference of two terms, as a function of the point of a line."""

    boundaries: Boundaries
    line: Line
    pair: tuple[Pattern, Pattern]
    row: int
    arithmetic: ManyDigits

    def __call__(self, point: Any) -> Any:
        """Its value. Raises UndefinedError: a term is undefined."""
        sizes, values = self.line.at(_exact(point))
        model = Model(self.boundaries.domain, self.arithmetic, sizes)
        known = {name: value_in(model, value) for name, value in values.items()}
        for name, term in self.boundaries.steps:
            with suppress(UndefinedError, KeyError):
                known[name] = evaluate(term, model, known)
        try:
            left, right = (np.frompyfunc(as_mpf, 1, 1)(_entries(evaluate(it, model, known))) for it in self.pair)
        except KeyError:
            raise UndefinedError("an operand of a comparison") from None
        return np.asarray(left - right, dtype=object).ravel()[self.row]

    def central(self, point: Any) -> Any:
        """Its central difference, with a step that leaves a third of the digits."""
        step = mpmath.mpf(10) ** (-self.arithmetic.digits // 3)
        return self(point + step) - self(point - step)


def _entries(value: Any) -> Any:
    return np.asarray(getattr(value, "array", Fraction(value) if isinstance(value, int | Fraction) else value), dtype=object)


def _zero(function: Callable[[Any], Any], low: Any, high: Any, digits: int) -> Any | None:
    """A zero between two points of other sign, by the Illinois method; None if their signs are equal."""
    at_low, at_high = function(low), function(high)
    if not at_low * at_high < 0:
        return None
    point, near = low, mpmath.mpf(10) ** (5 - digits)
    for _ in range(_STEPS):
        before, point = point, (low * at_high - high * at_low) / (at_high - at_low)
        value = function(point)
        if value == 0 or abs(point - before) <= near * abs(point):
            break
        if value * at_high < 0:
            low, at_low = high, at_high
        else:
            at_low /= 2
        high, at_high = point, value
    return point


def _exact(number: Any) -> Fraction:
    """A number of mpmath as a rational."""
    numerator, denominator = mpmath.libmp.to_rational(number._mpf_)
    return Fraction(int(numerator), int(denominator))
