"""Values for the variables of a law: random ones, and a counterexample made smaller until nothing simpler refutes.

Laws fail where few values lie: beyond a clamp's bound, at a root's other sign, at one size. So numbers are drawn about those
that the law names, of many magnitudes and of both signs, whole tensors of one sign among them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np

from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Apply, Literal, Pattern, applications, patterns, variables
from mirage_eg.egraph.soundness.claims import PRIMITIVES, Plan, constant
from mirage_eg.egraph.soundness.models import UndefinedError
from mirage_eg.ir.ops import OPS, Kind

PARTS = ("i", "j", "k")
SIZES = (1, 2, 3, 1, 2, 3, *range(4, 10))  # of a part, each as often as it is listed
MOST_ENTRIES = 27  # of a tensor
MOST_CONSTANTS = 4  # that a law names: the values about them, and about their sums and products, are drawn
MOST_JOINED = 24  # of the latter

Sizes = dict[str, int]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A variable's value: exact rationals, flat, over those parts that the flags say; `declared` is what axes says of it."""

    varies: tuple[bool, ...]
    declared: tuple[bool, ...]
    entries: tuple[Fraction, ...]


def constants_of(plan: Plan) -> tuple[Fraction, ...]:
    """The numbers that a law names: literals, and what primitives make of literals alone."""
    return tuple(sorted({value for pattern in patterns(plan.law) for value in _numbers(pattern)}, key=_complexity))


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
        return constant(pattern)
    except UndefinedError:  # the law never applies
        return None


def _about(constants: Iterable[Fraction]) -> set[Fraction]:
    """The constants, next to them on both sides, and the same with the other sign: where clamps, roots and maxima turn."""
    return {sign * (value + step) for value in constants for step in (-1, 0, 1) for sign in (1, -1)}


def _joined(constants: Sequence[Fraction]) -> set[Fraction]:
    """Sums, differences, products and quotients of two constants, 1 among them."""
    pairs = list(product({*constants, Fraction(1)} if constants else (), repeat=2))
    return {join for a, b in pairs for join in (a + b, a - b, a * b)} | {a / b for a, b in pairs if b}


def _complexity(value: Fraction) -> tuple[int, Fraction]:
    """What makes a number harder to check by hand; 1 is the simplest, then 2, 1/2, 0 and 3."""
    return (abs(value.numerator) or 3) + 2 * value.denominator + 4 * (value < 0), value


_SMALL = (*map(Fraction, range(1, 7)), *(Fraction(n, 8) for n in range(8)), *(Fraction(n, 4) for n in range(5, 10)))
_LARGE = tuple(n * Fraction(10) ** e for e in range(-6, 7) for n in (1, 3, 7))
_POWERS_OF_TEN = tuple(Fraction(10) ** e for e in (-3, -2, -1, 1, 2, 3))
_RATIONALS = (*map(Fraction, range(1, 5)), *(Fraction(n, d) for d in (2, 3) for n in (1, 3, 4) if n % d))


@dataclass(frozen=True, slots=True)
class Source:
    """RandomInputs assignments for one law; a number is drawn as often as it is listed."""

    plan: Plan
    parts: tuple[str, ...]
    near: tuple[Fraction, ...]  # about the law's constants

    @classmethod
    def of(cls, plan: Plan, domain: str) -> "Source":
        """The source for a law."""
        constants = constants_of(plan)[:MOST_CONSTANTS]
        near = _about(constants) | set(sorted(_about(_joined(constants)), key=_complexity)[:MOST_JOINED])
        parts = PARTS if domain == "indexed" and _speaks_of_parts(plan) else ()
        return cls(plan, parts, tuple(sorted(near, key=_complexity)))

    def draw(self, random: Random) -> tuple[Sizes, Values]:
        """Sizes of the parts, and a value for each variable that the law draws."""
        sizes: Sizes = {}
        for part in random.sample(self.parts, len(self.parts)):
            sizes[part] = min(random.choice(SIZES), max(1, MOST_ENTRIES // prod(sizes.values())))
        sizes = {part: sizes[part] for part in self.parts}
        names = iter(random.sample(self.parts, len(self.parts)) if random.random() < 0.7 else ())
        wide = random.random() < 0.5
        values: Values = {}
        for name, sort in self.plan.drawn.items():
            match sort:
                case "String":
                    values[name] = (next(names, None) or random.choice(self.parts)) if self.parts else "x"
                case "i64":
                    values[name] = random.choice(self._whole([it for it in values.values() if isinstance(it, int)]))
                case "BigRat":
                    values[name] = random.choice(self._rationals([it for it in values.values() if isinstance(it, Fraction)]))
                case _:
                    values[name] = self._tensor(random, sizes, wide)
        return sizes, values

    def _tensor(self, random: Random, sizes: Sizes, wide: bool) -> Tensor:
        varies = tuple(random.random() < 0.5 for _ in sizes)
        declared = tuple(flag or random.random() < 0.25 for flag in varies)
        count = prod(size for size, flag in zip(sizes.values(), varies, strict=True) if flag)
        positive = [*_SMALL, *(it for it in self.near if it > 0), *(_LARGE if wide and random.random() < 0.5 else ())]
        negative = [-it for it in positive]
        numbers = random.choice([positive, negative, positive + negative])
        return Tensor(varies, declared, tuple(random.choices(numbers, k=count)))

    def _rationals(self, earlier: Sequence[Fraction]) -> list[Fraction]:
        """Constants of a law's variable, half of them in a simple relation with one that was drawn before."""
        small = [*_RATIONALS, *self.near, *(-it for it in _RATIONALS), Fraction(0)]
        alone = [*small, *small, *_POWERS_OF_TEN, *(-it for it in _POWERS_OF_TEN)]
        related = [join for it in earlier for join in (it, -it, 1 - it, it + 1, 2 * it)]
        related += [1 / it for it in earlier if it] * 2
        return [*alone, *related * (len(alone) // max(1, len(related)))]

    def _whole(self, earlier: Sequence[int]) -> list[int]:
        """Numbers of summands, half of them multiples of one that was drawn before."""
        near = {int(abs(it)) for it in self.near if it.denominator == 1}
        alone = [*range(1, 13), *range(1, 13), *sorted(near - {0}), *range(13, 101, 11)]
        multiples = [it * factor for it in earlier for factor in range(1, 6)]
        return [*alone, *multiples * (len(alone) // max(1, len(multiples)))]

    def smallest(self, sizes: Sizes, values: Values, refutes: Callable[[Sizes, Values], bool]) -> tuple[Sizes, Values]:
        """An assignment that still refutes, and of which nothing simpler does."""
        while (smaller := next((it for it in self._simpler(sizes, values) if refutes(*it)), None)) is not None:
            sizes, values = smaller
        return sizes, values

    def _simpler(self, sizes: Sizes, values: Values) -> Iterator[tuple[Sizes, Values]]:
        yield from _smaller(sizes, values)
        numbers = sorted({*_SMALL, *_LARGE, *self.near, *_RATIONALS, *_POWERS_OF_TEN}, key=_complexity)
        numbers = sorted({sign * it for it in numbers for sign in (1, -1)}, key=_complexity)
        for name, value in values.items():
            match value:
                case Tensor(entries=entries):
                    for place, entry in enumerate(entries):
                        for number in _before(entry, numbers):
                            changed = (*entries[:place], number, *entries[place + 1 :])
                            yield sizes, values | {name: replace(value, entries=changed)}
                case Fraction():
                    yield from ((sizes, values | {name: number}) for number in _before(value, numbers))
                case int():
                    yield from ((sizes, values | {name: number}) for number in range(1, value))


def _before(value: Fraction, numbers: Sequence[Fraction]) -> Iterator[Fraction]:
    """The numbers that are simpler than a value, the simplest first."""
    return (it for it in numbers if _complexity(it) < _complexity(value))


def _speaks_of_parts(plan: Plan) -> bool:
    """Whether a law has reductions or asks for axes; any other is about single numbers."""
    named = {application.name for pattern in patterns(plan.law) for application in applications(pattern)}
    ops = {op for name in named if (op := op_of(name)) is not None}
    return "axes" in named or any(OPS[op].kind is Kind.REDUCTION for op in ops)


def _smaller(sizes: Sizes, values: Values) -> Iterator[tuple[Sizes, Values]]:
    """Fewer entries."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    for dim, part in enumerate(sizes):  # a part of fewer values
        for left in [[index] for index in range(sizes[part])] if sizes[part] > 1 else []:
            yield _with_part(sizes, values, tensors, dim, part, left)
        for gone in range(sizes[part] if sizes[part] > 2 else 0):
            yield _with_part(sizes, values, tensors, dim, part, [index for index in range(sizes[part]) if index != gone])
    for name, tensor in tensors.items():  # one tensor that varies with a part no longer
        for dim, part in enumerate(sizes):
            flags, declared = (flags[:dim] + (False,) + flags[dim + 1 :] for flags in (tensor.varies, tensor.declared))
            for kept in range(sizes[part] if tensor.varies[dim] else 0):
                cut = _cut(tensor, sizes, dim, [kept])
                yield sizes, values | {name: replace(cut, varies=flags, declared=declared)}
            if tensor.declared[dim] and not tensor.varies[dim]:
                yield sizes, values | {name: replace(tensor, declared=declared)}


def _with_part(
    sizes: Sizes, values: Values, tensors: dict[str, Tensor], dim: int, part: str, left: list[int]
) -> tuple[Sizes, Values]:
    cuts = {name: _cut(tensor, sizes, dim, left) for name, tensor in tensors.items() if tensor.varies[dim]}
    return sizes | {part: len(left)}, values | cuts


def _cut(tensor: Tensor, sizes: Sizes, dim: int, left: list[int]) -> Tensor:
    shape = [size if varies else 1 for size, varies in zip(sizes.values(), tensor.varies, strict=True)]
    entries = np.array(tensor.entries, dtype=object).reshape(shape).take(left, axis=dim)
    return replace(tensor, entries=tuple(entries.ravel()))
