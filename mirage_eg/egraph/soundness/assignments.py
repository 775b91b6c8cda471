"""Random assignments of a law's variables, and the shrinking of a counterexample until nothing simpler refutes the law.

Laws fail at rare values: beyond the bound of a clamp, at the other sign of a root, at one size. So random numbers lie near the
constants of the law, have many magnitudes and both signs, and some tensors have one sign only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Context
from fractions import Fraction
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np

from mirage_eg.egraph.equations import UnboundError, instance
from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Apply, Literal, Pattern, Variable, applications, patterns, variables
from mirage_eg.egraph.primitives import PRIMITIVES
from mirage_eg.egraph.soundness.claims import CheckableLaw
from mirage_eg.egraph.soundness.indices import PARTS as INDEX_PARTS
from mirage_eg.egraph.soundness.indices import fitting, uses_indices
from mirage_eg.egraph.soundness.models import Model
from mirage_eg.ir.ops import OPS, Kind

PARTS = ("i", "j", "k")
SIZES = (1, 2, 3, 1, 2, 3, *range(4, 10))  # of a part, as often as listed
MOST_ENTRIES = 27  # of a tensor
MOST_CONSTANTS = 4  # of a law: random values include their neighbours, and those of their sums and products
MOST_COMBINED = 24  # neighbours of sums and products
CLOSE = tuple(Fraction(1, 10**exponent) for exponent in range(1, 13))  # to a constant: a condition near its bound
FAR_EXTENTS = tuple(base**exponent for base, most in ((2, 30), (10, 9)) for exponent in range(1, most + 1))
LONG_PARTS = 12  # assignments for a law in which a tensor varies with a part of more values than usual
MOST_LONG = 2_048  # values of such a part

Sizes = dict[str, int]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """A variable's value: exact rationals, flat, over the parts of `varies`; `declared` are its `axes`."""

    varies: tuple[bool, ...]
    declared: tuple[bool, ...]
    entries: tuple[Fraction, ...]


_MOST_BITS = 2_048  # of the denominator of a number that stands for itself: a float64 has at most 1,074


def is_rounded(number: Fraction) -> bool:
    """Whether a rational stands for an irrational number, by its many digits."""
    return number.denominator.bit_length() > _MOST_BITS


def value_in(model: Model, value: Any) -> Any:
    """A variable's value in a model."""
    if not isinstance(value, RandomTensor):
        return value
    shape = [size if flag else 1 for size, flag in zip(model.sizes.values(), value.varies, strict=True)]
    declared = frozenset(part for part, flag in zip(model.sizes, value.declared, strict=True) if flag)
    return model.tensor(np.array(value.entries, dtype=object).reshape(shape), declared)


def constants_of(checkable: CheckableLaw) -> tuple[Fraction, ...]:
    """The constants of a law: literals, and primitives of literals."""
    return tuple(sorted({value for pattern in patterns(checkable.law) for value in _numbers(pattern)}, key=_complexity))


def _numbers(pattern: Pattern) -> Iterator[Fraction]:
    match pattern:
        case Literal(int() as value) if not isinstance(value, bool):
            yield Fraction(value)
        case Apply(name, arguments) if name not in PRIMITIVES or any(variables(pattern)):
            for argument in arguments:
                yield from _numbers(argument)
        case Apply():
            value = _folded(pattern)
            if isinstance(value, int | Fraction) and not isinstance(value, bool):
                yield Fraction(value)


def _folded(pattern: Pattern) -> Any:
    try:
        return instance(pattern, {}, {})
    except (UnboundError, ArithmeticError):  # the law never applies
        return None


def _neighbours(constants: Iterable[Fraction]) -> set[Fraction]:
    """The constants and their neighbours, with both signs: where clamps, roots and maxima change."""
    return {sign * (value + step) for value in constants for step in (-1, 0, 1) for sign in (1, -1)}


def _combined(constants: Sequence[Fraction]) -> set[Fraction]:
    """Sums, differences, products and quotients of two constants, 1 among them."""
    pairs = list(product({*constants, Fraction(1)} if constants else (), repeat=2))
    return {number for a, b in pairs for number in (a + b, a - b, a * b)} | {a / b for a, b in pairs if b}


def _complexity(value: Fraction) -> tuple[int, Fraction]:
    """How hard a number is to check by hand; 1 is the simplest, then 2, 1/2, 0 and 3."""
    return (abs(value.numerator) or 3) + 2 * value.denominator + 4 * (value < 0), value


_SMALL = (*map(Fraction, range(1, 7)), *(Fraction(n, 8) for n in range(8)), *(Fraction(n, 4) for n in range(5, 10)))
_LARGE = tuple(n * Fraction(10) ** e for e in range(-6, 7) for n in (1, 3, 7))
_POWERS_OF_TEN = tuple(Fraction(10) ** e for e in (-3, -2, -1, 1, 2, 3))
_RATIONALS = (*map(Fraction, range(1, 5)), *(Fraction(n, d) for d in (2, 3) for n in (1, 3, 4) if n % d))


@dataclass(frozen=True, slots=True)
class RandomAssignments:
    """Random assignments for one law; the probability of a number is proportional to its listings."""

    checkable: CheckableLaw
    parts: tuple[str, ...]
    near: tuple[Fraction, ...]  # neighbours of the law's constants
    close: tuple[Fraction, ...]  # numbers near them
    indicators: frozenset[str] = frozenset()  # variables that must be 0 or 1

    @classmethod
    def of(cls, checkable: CheckableLaw, domain: str) -> "RandomAssignments":
        """The random assignments for a law."""
        constants = constants_of(checkable)[:MOST_CONSTANTS]
        near = _neighbours(constants) | set(sorted(_neighbours(_combined(constants)), key=_complexity)[:MOST_COMBINED])
        parts: tuple[str, ...] = PARTS if domain == "indexed" and _uses_parts(checkable) else ()
        parts = INDEX_PARTS if uses_indices(checkable) else parts
        close = tuple(it + sign * step for it in dict.fromkeys((*constants, Fraction(0))) for step in CLOSE for sign in (1, -1))
        return cls(checkable, parts, tuple(sorted(near, key=_complexity)), close, frozenset(_indicators(checkable)))

    def next(self, random: Random) -> tuple[Sizes, Values]:
        """Sizes of the parts, and a value for each free variable of the law."""
        if self.parts == INDEX_PARTS:
            sizes, chosen = fitting(self.checkable, random)
            return sizes, self._values(random, sizes, chosen)
        sizes = {}
        for part in random.sample(self.parts, len(self.parts)):
            sizes[part] = min(random.choice(SIZES), max(1, MOST_ENTRIES // prod(sizes.values())))
        constant: frozenset[str] = frozenset()
        if self.parts and random.random() < 0.25:
            constant = frozenset(random.sample(self.parts, random.randint(1, len(self.parts))))
            sizes |= {part: random.choice(self._extents()) for part in sorted(constant)}
        sizes = {part: sizes[part] for part in self.parts}
        return sizes, self._values(random, sizes, {}, constant)

    def long(self, random: Random) -> Iterator[tuple[Sizes, Values]]:
        """Assignments with one part that has about as many values as a constant of the law says, or twice as many."""
        if not self.parts or self.parts == INDEX_PARTS:
            return
        extents = [it * factor for it in self._extents() if it not in FAR_EXTENTS for factor in (1, 2)] or FAR_EXTENTS
        extents = [it for it in extents if MOST_ENTRIES < it <= MOST_LONG]
        names = [name for name, sort in self.checkable.variables.items() if sort == "String"]
        for _ in range(LONG_PARTS if extents and names else 0):
            indices = dict(zip(names, random.sample(self.parts * len(names), len(names)), strict=True))
            long = random.choice([*indices.values()])
            sizes = {part: random.choice(extents) if part == long else 1 for part in self.parts}
            yield sizes, self._values(random, sizes, indices)

    def _extents(self) -> list[int]:
        """Extents of a part that no tensor varies with: of all magnitudes, half of them near the constants of the law."""
        near = sorted({n for it in self.near if it > 0 for n in (int(it), int(it) + 1, int(1 / it)) if n > 0})
        return [*FAR_EXTENTS, *near * max(1, len(FAR_EXTENTS) // max(1, len(near)))]

    def _values(self, random: Random, sizes: Sizes, chosen: Values, constant: frozenset[str] = frozenset()) -> Values:
        """A value for each free variable; `chosen` are known, and none varies with the parts in `constant`."""
        names = iter(random.sample(self.parts, len(self.parts)) if random.random() < 0.7 else ())
        wide = random.random() < 0.5
        values: Values = {}
        for name, sort in self.checkable.variables.items():
            match sort:
                case _ if name in chosen:
                    values[name] = chosen[name]
                case "String":
                    values[name] = (next(names, None) or random.choice(self.parts)) if self.parts else "x"
                case "i64":
                    values[name] = random.choice(self._whole([it for it in values.values() if isinstance(it, int)]))
                case "BigRat":
                    drawn = self._rationals([it for it in values.values() if isinstance(it, Fraction)])
                    values[name] = random.choice(drawn if random.random() < 0.85 else self.close)
                case _:
                    values[name] = self._tensor(random, sizes, wide, name in self.indicators, constant)
        return values

    def _tensor(self, random: Random, sizes: Sizes, wide: bool, indicator: bool, constant: frozenset[str]) -> RandomTensor:
        varies = tuple(random.random() < 0.5 and part not in constant for part in sizes)
        declared = tuple(flag or random.random() < 0.25 for flag in varies)
        count = prod(size for size, flag in zip(sizes.values(), varies, strict=True) if flag)
        if indicator:
            return RandomTensor(varies, declared, tuple(random.choices((Fraction(0), Fraction(1)), k=count)))
        positive = [*_SMALL, *(it for it in self.near if it > 0), *(_LARGE if wide and random.random() < 0.5 else ())]
        negative = [-it for it in positive]
        numbers = random.choice([positive, negative, positive + negative])
        return RandomTensor(varies, declared, tuple(random.choices(numbers, k=count)))

    def _rationals(self, earlier: Sequence[Fraction]) -> list[Fraction]:
        """Constants for a variable, half of them in a simple relation with an earlier one."""
        small = [*_RATIONALS, *self.near, *(-it for it in _RATIONALS), Fraction(0)]
        independent = [*small, *small, *_POWERS_OF_TEN, *(-it for it in _POWERS_OF_TEN)]
        related = [number for it in earlier for number in (it, -it, 1 - it, it + 1, 2 * it)]
        related += [1 / it for it in earlier if it] * 2
        return [*independent, *related * (len(independent) // max(1, len(related)))]

    def _whole(self, earlier: Sequence[int]) -> list[int]:
        """Numbers of summands, half of them multiples of an earlier one."""
        near = {int(abs(it)) for it in self.near if it.denominator == 1}
        independent = [*range(1, 13), *range(1, 13), *sorted(near - {0}), *range(13, 101, 11), *self._extents()[::4]]
        multiples = [it * factor for it in earlier for factor in range(1, 6)]
        return [*independent, *multiples * (len(independent) // max(1, len(multiples)))]

    def shrink(self, sizes: Sizes, values: Values, refutes: Callable[[Sizes, Values], bool]) -> tuple[Sizes, Values]:
        """A simplest assignment that still refutes."""
        while (smaller := next((it for it in self._simpler(sizes, values) if refutes(*it)), None)) is not None:
            sizes, values = smaller
        return sizes, values

    def _simpler(self, sizes: Sizes, values: Values) -> Iterator[tuple[Sizes, Values]]:
        yield from _smaller(sizes, values)
        numbers = sorted({*_SMALL, *_LARGE, *self.near, *_RATIONALS, *_POWERS_OF_TEN}, key=_complexity)
        numbers = sorted({sign * it for it in numbers for sign in (1, -1)}, key=_complexity)
        for name, value in values.items():
            match value:
                case RandomTensor(entries=entries):
                    for entry in dict.fromkeys(entries):  # equal ones together
                        for number in _simpler_numbers(entry, numbers):
                            changed = tuple(number if it == entry else it for it in entries)
                            yield sizes, values | {name: replace(value, entries=changed)}
                    for position, entry in enumerate(entries if len(set(entries)) < len(entries) <= MOST_ENTRIES else ()):
                        for number in _simpler_numbers(entry, numbers):
                            changed = (*entries[:position], number, *entries[position + 1 :])
                            yield sizes, values | {name: replace(value, entries=changed)}
                case Fraction():
                    yield from ((sizes, values | {name: number}) for number in _simpler_numbers(value, numbers))
                case int():
                    yield from ((sizes, values | {name: number}) for number in _fewer(value))


def _simpler_numbers(value: Fraction, numbers: Sequence[Fraction]) -> Iterator[Fraction]:
    """The numbers simpler than a value, the simplest first; then the value with fewer digits, of a value with many."""
    yield from (it for it in numbers if _complexity(it) < _complexity(value))
    rounded = (Fraction(Context(prec=digits).divide(value.numerator, value.denominator)) for digits in range(1, 17))
    yield from (it for it in rounded if it and _complexity(it) < _complexity(value))


def _uses_parts(checkable: CheckableLaw) -> bool:
    """Whether a law has reductions or conditions on axes; any other law is about single numbers."""
    named = {application.name for pattern in patterns(checkable.law) for application in applications(pattern)}
    ops = {op for name in named if (op := op_of(name)) is not None}
    return "axes" in named or any(OPS[op].kind is Kind.REDUCTION for op in ops)


def _indicators(checkable: CheckableLaw) -> Iterator[str]:
    """The variables that are conditions of choices, or are named as indicators."""
    for pattern in patterns(checkable.law):
        for application in applications(pattern):
            if application.name in ("Where", "indicator") and isinstance(subject := application.arguments[0], Variable):
                yield subject.name


def _smaller(sizes: Sizes, values: Values) -> Iterator[tuple[Sizes, Values]]:
    """Assignments with fewer entries."""
    tensors = {name: value for name, value in values.items() if isinstance(value, RandomTensor)}
    for dim, part in enumerate(sizes):  # a smaller part
        size = sizes[part]
        if not any(tensor.varies[dim] for tensor in tensors.values()):
            yield from ((sizes | {part: fewer}, values) for fewer in _fewer(size))
            continue
        for index in range(size) if 1 < size <= MOST_ENTRIES else ():
            yield _with_part(sizes, values, tensors, dim, part, [index])
        for start, stop in _runs(size) if size > 2 else ():
            yield _with_part(sizes, values, tensors, dim, part, [*range(start), *range(stop, size)])
    for name, tensor in tensors.items():  # one tensor varies with one part less
        for dim, part in enumerate(sizes):
            flags, declared = (flags[:dim] + (False,) + flags[dim + 1 :] for flags in (tensor.varies, tensor.declared))
            for kept in range(sizes[part] if tensor.varies[dim] else 0):
                cut = _cut(tensor, sizes, dim, [kept])
                yield sizes, values | {name: replace(cut, varies=flags, declared=declared)}
            if tensor.declared[dim] and not tensor.varies[dim]:
                yield sizes, values | {name: replace(tensor, declared=declared)}


def _fewer(size: int) -> Iterator[int]:
    """Smaller numbers, the smallest first, then those that are smaller by a half, a quarter, …"""
    yield from range(1, min(size, 4))
    step = size // 2
    while step:
        yield size - step
        step //= 2


def _runs(size: int) -> Iterator[tuple[int, int]]:
    """Runs of values that may be left out: halves, then quarters, …, then single values."""
    length = size // 2
    while length:
        yield from ((start, min(size, start + length)) for start in range(0, size, length))
        length = length // 2 if length > 1 else 0


def _with_part(
    sizes: Sizes, values: Values, tensors: dict[str, RandomTensor], dim: int, part: str, left: list[int]
) -> tuple[Sizes, Values]:
    cuts = {name: _cut(tensor, sizes, dim, left) for name, tensor in tensors.items() if tensor.varies[dim]}
    return sizes | {part: len(left)}, values | cuts


def _cut(tensor: RandomTensor, sizes: Sizes, dim: int, left: list[int]) -> RandomTensor:
    shape = [size if varies else 1 for size, varies in zip(sizes.values(), tensor.varies, strict=True)]
    entries = np.array(tensor.entries, dtype=object).reshape(shape).take(left, axis=dim)
    return replace(tensor, entries=tuple(entries.ravel()))
