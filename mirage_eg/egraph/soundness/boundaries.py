"""Assignments at the boundaries of a law: where an inner term passes a number or another term, and where it is smallest.

A random assignment misses a boundary that is far out (clamp(log|x|, ±40)), one that is a single point (7x = 22), and a gap
between a smallest value and a threshold. Along a line, one number moves through all magnitudes, so each difference of two terms
of the law, or of a term and a constant of it, is a function of one number. Its zeros are enclosed by bisection on the floats
between two points of different sign, and its smallest magnitudes by the same division. The line is then tested at these points,
next to them, and between them. Sampled in float64; each assignment is decided in many digits (`check_law`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, combinations
from math import isfinite
from random import Random
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.field_semantics import ELEMENTWISE
from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import (
    Apply,
    Law,
    Literal,
    Pattern,
    Variable,
    applications,
    inlined,
    patterns,
    sides_of,
    variables,
    variables_of,
)
from mirage_eg.egraph.soundness.assignments import RandomAssignments, RandomTensor, Sizes, Values, constants_of
from mirage_eg.egraph.soundness.claims import CheckableLaw, evaluate, holds, is_expression
from mirage_eg.egraph.soundness.models import Array, MaskedFloat64, Model, UndefinedError
from mirage_eg.ir.ops import OPS

LINES = 12  # for a law
TESTED = 24  # points of a line, besides those at which the sides differ in float64
SUSPECTED = 8  # points at which they differ
_ROOTS = 24  # enclosed on a line
_PAIRS = 24  # of terms whose difference is followed on a line
_SECTIONS = 64  # of an interval, in each step
_NARROWINGS = 11  # of an interval around a smallest magnitude: it halves five times in each
STARTS = 20  # trials for a line
_SAMPLE = "sample"  # the part of the points, which no law names
_FACTORS = (*map(Fraction, (1, 1, 1, -1, 2)), Fraction(1, 2))
_DENOMINATORS = (1, 12, 1_000, 10**6)  # of the rational that a zero is taken for
_FARTHEST = 1e300
_MASKED = MaskedFloat64()
Pair = tuple[Pattern, Pattern]


@dataclass(frozen=True, slots=True)
class Line:
    """Values of which some entries are a multiple of one number."""

    sizes: Sizes
    values: Values
    moved: Mapping[str, Mapping[int, Fraction]]  # entries and factors of each variable that moves

    def at(self, point: Fraction) -> tuple[Sizes, Values]:
        """The assignment at a point."""
        values = dict(self.values)
        for name, factors in self.moved.items():
            entries = tuple(factors[at] * point if at in factors else it for at, it in enumerate(values[name].entries))
            values[name] = replace(values[name], entries=entries)
        return self.sizes, values

    def tensor(self, name: str, points: Array) -> Array:
        """The entries of a variable at all points, with one dim for each part and one of points."""
        value: RandomTensor = self.values[name]
        entries = np.repeat(np.array([_float(it) for it in value.entries])[:, None], len(points), axis=1)
        for at, factor in self.moved.get(name, {}).items():
            entries[at] = float(factor) * points
        return entries.reshape(
            [*(size if flag else 1 for size, flag in zip(self.sizes.values(), value.varies, strict=True)), -1]
        )


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The terms of a law, each by its operation on earlier ones, and the pairs of them that are compared along lines."""

    checkable: CheckableLaw
    domain: str
    steps: tuple[tuple[str, Apply], ...]  # a name for each term, operands first
    united: tuple[tuple[Pattern, Pattern], ...]  # the sides of its claims
    first: tuple[tuple[Pattern, Pattern], ...]  # the operands of one term, and each operand and 0
    others: tuple[tuple[Pattern, Pattern], ...]

    @classmethod
    def of(cls, checkable: CheckableLaw, domain: str) -> "Boundaries":
        """The boundaries of a law."""
        names = dict(checkable.named) | checkable.law.lets
        terms: dict[Apply, str] = {}

        def numbered(pattern: Pattern) -> Pattern:
            """A pattern with its inner terms named."""
            if not isinstance(pattern, Apply):
                return pattern
            inner = Apply(pattern.name, tuple(map(numbered, pattern.arguments)))
            if not is_expression(pattern.name):
                return inner
            return Variable(terms.setdefault(inner, f"term {len(terms)}"))

        united = []
        for action in checkable.law.actions:
            sides = [numbered(inlined(argument, names)) for argument in action.arguments]
            if action.kind == "union":
                united.append((sides[0], sides[1]))
        for condition in checkable.conditions:
            for pattern in sides_of(condition):
                numbered(inlined(pattern, names))
        inputs = [Variable(name) for name, sort in checkable.variables.items() if sort == "E"]
        known: list[Pattern] = [*inputs, *map(Variable, terms.values())]
        numbers = list(dict.fromkeys(it for term in terms for it in term.arguments if _is_number(it, checkable)))
        first = [
            pair
            for term in terms
            for pair in combinations([it for it in term.arguments if it in known or it in numbers], 2)
            if not (pair[0] in numbers and pair[1] in numbers)
        ]
        first += [(operand, _ZERO) for term in terms for operand in term.arguments if operand in known]
        others = [*combinations(known, 2), *((term, number) for term in known for number in numbers)]
        others += [(term, _ZERO) for term in known]
        steps = tuple((name, term) for term, name in terms.items())
        return cls(checkable, domain, steps, tuple(united), tuple(dict.fromkeys(first)), tuple(dict.fromkeys(others)))

    def assignments(self, generated: RandomAssignments, random: Random) -> Iterator[tuple[Sizes, Values]]:
        """Assignments on LINES lines, those at which the sides differ in float64 first."""
        start: tuple[Sizes, Values] | None = None
        for _ in range(LINES):
            line = line_through(*(start or self.start(generated, random)), random)
            if line is None:
                return
            first = random.sample(self.first, min(len(self.first), _PAIRS))
            others = random.sample(self.others, min(len(self.others), _PAIRS - len(first)))
            points, nearest = self._divided(line, first, others, random)
            yield from (line.at(point) for point in points)
            start = line.at(nearest) if nearest is not None and random.random() < 0.6 else None

    def start(self, generated: RandomAssignments, random: Random) -> tuple[Sizes, Values]:
        """An assignment at which the conditions on numbers hold, if one of STARTS trials is one; half of them near a bound."""
        for _ in range(STARTS):
            sizes, values = generated.next(random)
            if random.random() < 0.5:
                values |= {
                    name: random.choice(generated.close) for name, value in values.items() if isinstance(value, Fraction)
                }
            if self._permits(sizes, values):
                break
        return sizes, values

    def _permits(self, sizes: Sizes, values: Values) -> bool:
        """Whether the conditions on numbers hold."""
        model = Model(self.domain, _MASKED, sizes)
        known = {name: value for name, value in values.items() if not isinstance(value, RandomTensor)}
        try:
            for name, pattern in self.checkable.named:
                if known.keys() >= {*variables(pattern)}:
                    known[name] = evaluate(pattern, model, known)
            conditions = [it for it in self.checkable.conditions if known.keys() >= {*variables_of(it)}]
            return all(holds(condition, model, known) for condition in conditions)
        except UndefinedError:
            return False

    def _divided(
        self, line: Line, first: Sequence[Pair], others: Sequence[Pair], random: Random
    ) -> tuple[list[Fraction], Fraction | None]:
        """The points of a line to test, and one at which a difference of terms is smallest."""
        grid = grid_of([*constants_of(self.checkable)])
        known = self._zeros(line, [*first, *others], grid, random)
        near = np.concatenate([known + step for step in _STEPS])
        grid = np.unique(np.concatenate([grid, near[np.abs(near) <= _key(np.array([_FARTHEST]))[0]]]))
        important = self._zeros(line, first, grid, random)  # also next to those: log(log x) has values from 1 on
        known = np.union1d(known, important)
        differences, differ = self.values(line, first, number_at(grid))
        places = np.flatnonzero(differ)[_some(random, int(differ.sum()), SUSPECTED)]
        near = np.concatenate([known, known - 1, known + 1, (known[1:] + known[:-1]) // 2])
        points = _exact(grid[places]) + _sampled(_exact(important), TESTED, random) + _sampled(_exact(near), TESTED, random)
        nearest = None
        if len(differences):
            row = np.abs(differences[random.randrange(len(differences))])
            if np.isfinite(row).any():
                nearest = Fraction(float(number_at(grid[[np.nanargmin(row)]])[0]))
        return list(dict.fromkeys(points)), nearest

    def _zeros(self, line: Line, pairs: Sequence[Pair], grid: Array, random: Random) -> Array:
        """Floats at which a difference changes its sign, starts to be defined, or is smallest in magnitude."""
        differences, _ = self.values(line, pairs, number_at(grid))
        if not len(differences):
            return grid[:0]
        signs = signs_of(differences)
        rows, places = np.nonzero(signs[:, 1:] != signs[:, :-1])
        kept = _some(random, len(rows), _ROOTS)
        rows, low, high, left = rows[kept], grid[places[kept]], grid[places[kept] + 1], signs[rows[kept], places[kept]]
        while len(rows) and (high - low > 1).any():
            inner = _inner(low, high)
            found = signs_of(self.values(line, pairs, number_at(inner.ravel()))[0])
            at = found[np.repeat(rows, inner.shape[1]), np.arange(inner.size)].reshape(inner.shape)
            passed = np.column_stack([at != left[:, None], np.ones(len(rows), bool)]).argmax(axis=1)
            low, high = _narrowed(low, inner, high, passed, passed + 1)
        return np.unique(np.concatenate([low, high, self._minima(line, pairs, grid, np.abs(differences), random)]))

    def _minima(self, line: Line, pairs: Sequence[Pair], grid: Array, sizes: Array, random: Random) -> Array:
        """Floats at which the magnitude of a difference is smaller than at both neighbours."""
        with np.errstate(invalid="ignore"):
            rows, places = np.nonzero((sizes[:, 1:-1] < sizes[:, :-2]) & (sizes[:, 1:-1] <= sizes[:, 2:]))
        kept = _some(random, len(rows), _ROOTS)
        rows, low, high = rows[kept], grid[places[kept]], grid[places[kept] + 2]
        for _ in range(_NARROWINGS if len(rows) else 0):
            inner = _inner(low, high)
            found = np.abs(self.values(line, pairs, number_at(inner.ravel()))[0])
            at = found[np.repeat(rows, inner.shape[1]), np.arange(inner.size)].reshape(inner.shape)
            best = np.where(np.isnan(at), np.inf, at).argmin(axis=1)
            low, high = _narrowed(low, inner, high, best, best + 2)
        return (low + high) // 2

    def values(self, line: Line, pairs: Sequence[Pair], points: Array) -> tuple[Array, Array]:
        """The differences of pairs, a row for each entry, and the points at which the sides of a claim differ."""
        model = Model(self.domain, _MASKED, {**line.sizes, _SAMPLE: len(points)} if line.sizes else {})
        values: dict[str, Any] = {}
        for name, value in line.values.items():
            is_tensor = isinstance(value, RandomTensor)
            values[name] = model.tensor(line.tensor(name, points), frozenset()) if is_tensor else value
        for name, term in self.steps:
            with suppress(UndefinedError, KeyError):  # KeyError: an operand is undefined
                values[name] = evaluate(term, model, values)
        rows: list[Array] = []
        known = {it: _array(it, model, values) for it in dict.fromkeys(chain.from_iterable((*pairs, *self.united)))}
        differ = np.zeros(len(points), bool)
        with np.errstate(all="ignore"):
            for left, right in ((known[one], known[other]) for one, other in pairs):
                if left is not None and right is not None:
                    flat = _rows(left - right)
                    rows.append(np.broadcast_to(flat, (len(flat), len(points)))[:_PAIRS])
            for left, right in ((known[one], known[other]) for one, other in self.united):
                if left is not None and right is not None:
                    far = np.abs(left - right) > 1e-9 * np.maximum(np.abs(left), np.abs(right)) + 1e-300
                    differ = differ | _rows(far).any(axis=0)
        return (np.concatenate(rows) if rows else np.zeros((0, len(points)))), differ


_ZERO = Literal(0)


def unmodelled_ops(law: Law) -> frozenset[str]:
    """The ops of a law that obey other laws in the finite field, for all constants."""
    named = (op_of(application.name) for pattern in patterns(law) for application in applications(pattern))
    return frozenset(op for op in named if op is not None and _is_unmodelled(op))


def _is_unmodelled(op: str) -> bool:
    semantics = ELEMENTWISE.get(op)
    return semantics is not None and semantics.unfaithful({name: Fraction(1, 3) for name in OPS[op].attributes})


def has_boundaries(checkable: CheckableLaw) -> bool:
    """Whether a law may hold on one side of a boundary and fail on the other: not one of sums and products of a field, nor one
    that claims nothing about values."""
    return bool(checkable.law.unions and unmodelled_ops(checkable.law))


def _is_number(pattern: Pattern, checkable: CheckableLaw) -> bool:
    match pattern:
        case Variable(name):
            return checkable.variables.get(name) == "BigRat"
        case Literal(value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Apply(name, _):
            return not is_expression(name)


def _array(pattern: Pattern, model: Model, values: Mapping[str, Any]) -> Array | None:
    """The entries of a term, or a number; None if it is undefined."""
    try:
        value = evaluate(pattern, model, values)
    except (UndefinedError, KeyError):
        return None
    if isinstance(value, int | Fraction):
        return np.float64(_float(Fraction(value)))
    return getattr(value, "array", None)


def _rows(entries: Array) -> Array:
    """A row of points for each entry."""
    return entries.reshape(-1, entries.shape[-1]) if entries.ndim else entries.reshape(1, 1)


def line_through(sizes: Sizes, values: Values, random: Random) -> Line | None:
    """A line through an assignment: one entry moves, or multiples of one number are put into some variables."""
    tensors = [name for name, value in values.items() if isinstance(value, RandomTensor)]
    if not tensors:
        return None
    chosen = random.sample(tensors, random.choice((1, 1, 1, len(tensors), random.randint(1, len(tensors)))))
    moved = {}
    for name in chosen:
        count = len(values[name].entries)
        entries = range(count) if random.random() < 0.5 else [random.randrange(count)]
        factor = random.choice(_FACTORS) if len(chosen) > 1 else Fraction(1)
        moved[name] = dict.fromkeys(entries, factor)
    return Line(sizes, values, moved)


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _key(number: Array) -> Array:
    """The place of a float64 among all of them: neighbours differ by 1, and equal steps are equal ratios far from 0."""
    bits = np.asarray(number, np.float64).view(np.int64)
    return np.where(bits < 0, -(bits & np.int64(2**63 - 1)), bits)


def number_at(key: Array) -> Array:
    """The float64 at a place."""
    bits = np.abs(np.asarray(key, np.int64)).view(np.float64)
    return np.where(np.asarray(key) < 0, -bits, bits)


_STEPS = tuple(sign * 2**exponent for exponent in range(0, 60, 3) for sign in (1, -1))


def grid_of(constants: Sequence[Fraction]) -> Array:
    """Places of numbers of all magnitudes, denser near 1 and near the constants, in order."""
    far = np.logspace(-300, 300, 241)
    near = np.logspace(-4, 4, 121)
    whole = np.concatenate([np.arange(1.0, 17.0), np.arange(0.5, 6.0), [1 - 1e-9, 1 + 1e-9]])
    own = np.array([it for it in map(_float, constants) if isfinite(it)] or [0.0])
    positive = np.concatenate([far, near, whole, np.abs(own), np.abs(own) * 1.001, np.abs(own) * 0.999])
    return np.unique(_key(np.concatenate([positive, -positive, [0.0]])))


def signs_of(differences: Array) -> Array:
    """-1, 0 and 1, and 2 for an undefined difference."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(differences), 2, np.sign(differences)).astype(np.int8)


def _narrowed(low: Array, inner: Array, high: Array, start: Array, stop: Array) -> tuple[Array, Array]:
    """Each interval from one of its edges and dividing places to another."""
    edges, each = np.column_stack([low, inner, high]), np.arange(len(low))
    return edges[each, start], edges[each, stop]


def _inner(low: Array, high: Array) -> Array:
    """Places that divide each interval, in order."""
    width, step = (high - low)[:, None], np.arange(1, _SECTIONS)
    return low[:, None] + np.where(width < _SECTIONS, np.minimum(step, width), width // _SECTIONS * step)


def _some(random: Random, count: int, most: int) -> Array:
    """Up to `most` of so many numbers."""
    return np.array(sorted(random.sample(range(count), min(count, most))), dtype=np.int64)


def _sampled(points: Sequence[Fraction], most: int, random: Random) -> list[Fraction]:
    return random.sample(points, min(len(points), most))


def _exact(keys: Array) -> list[Fraction]:
    """The floats at these places, and the simple rationals that they may stand for."""
    return list(dict.fromkeys(exact for number in number_at(keys) for exact in _rationals(float(number))))


def _rationals(number: float) -> Iterator[Fraction]:
    """The simple rational near a float, if there is one, then the float itself."""
    if not isfinite(number):
        return
    exact = Fraction(number)
    may_be_simple = exact.denominator > 1 and abs(number) * _DENOMINATORS[-1] > 0.1  # others are whole, or nearest to 0
    if may_be_simple and _is_near(exact.limit_denominator(_DENOMINATORS[-1]), exact):  # if the nearest is not, none is
        yield next(it for it in map(exact.limit_denominator, _DENOMINATORS) if _is_near(it, exact))
    yield exact


def _is_near(simple: Fraction, exact: Fraction) -> bool:
    (p, q), (n, d) = simple.as_integer_ratio(), exact.as_integer_ratio()  # a third of the time of fractions
    return abs(p * d - n * q) * 10**12 <= abs(n) * q
