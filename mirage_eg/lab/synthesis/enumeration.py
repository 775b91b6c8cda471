"""Bottom-up enumeration of terms by their number of ops, one representative for each class of equal values.

Operands of new terms are representatives only (observational equivalence; Ruler, OOPSLA'21). A term is a row of integers until
it is part of an pair. Values of the largest terms are not stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from mirage_eg.egraph.laws import Pattern
from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.synthesis.fingerprint import agree, fingerprints
from mirage_eg.lab.synthesis.indexed import IndexedDomain
from mirage_eg.lab.synthesis.term_pair import Operator, Progress, TermPair, no_progress

Array = Any
MOST_TERMS = 20_000_000
_CHUNK = 1 << 13  # terms that are evaluated at once


@dataclass(frozen=True, slots=True)
class EnumeratedTerms:
    """The terms of one size and operator, in columns: operands (numbers of representatives), mask, and two keys.

    `key` is of all values, `total` of the columns in which every input is positive.
    """

    operator: int
    operands: Array
    mask: Array
    key: Array
    total: Array


@dataclass(slots=True)
class Enumeration:
    """All terms up to a size, and the representatives of their classes."""

    domain: IndexedDomain
    seed: int
    terms: int = 0
    operators: list[int] = field(default_factory=list)  # of each representative
    operands: list[tuple[int, ...]] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    keys: dict[int, int] = field(default_factory=dict)  # the representative of each key
    totals: dict[int, list[int]] = field(default_factory=dict)  # the representatives of each key of total columns
    equal: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)  # operator, operands, representative
    _values: Array = None  # of the representatives whose values are stored: the first ones
    _by_size: list[list[int]] = field(default_factory=list)

    @property
    def classes(self) -> int:
        """The number of classes of equal values."""
        return len(self.operators)

    def pattern(self, operator: int, operands: Sequence[int]) -> Pattern:
        """A term from its operator and the representatives below it."""
        inner = [self.pattern(self.operators[it], self.operands[it]) for it in operands]
        return self.domain.operators[operator].pattern(inner)

    def representative(self, number: int) -> Pattern:
        """The term of a representative."""
        return self.pattern(self.operators[number], self.operands[number])

    def value(self, number: int) -> Array:
        """The row of values of a representative, computed again if it was not stored."""
        if number < len(self._values):
            return self._values[number]
        operator = self.domain.operators[self.operators[number]]
        return operator.apply([self.value(it)[None] for it in self.operands[number]])[0]


def enumerate_terms(domain: IndexedDomain, size: int, seed: int = 0, on_progress: Progress = no_progress) -> Enumeration:
    """All terms with up to `size` ops.

    Raises OptionError: there are more than MOST_TERMS terms; the message has a smaller size.
    """
    found = Enumeration(domain, seed)
    for ops in range(size + 1):
        found._by_size.append([])
        levels = []
        for number, operator in enumerate(domain.operators):
            if (operator.arity == 0) == (ops == 0):
                levels += list(_applications(found, number, operator, ops, on_progress))
        for level in levels:
            _add(found, level, stored=ops < size)
    return found


def _applications(
    found: Enumeration, number: int, operator: Operator, ops: int, on_progress: Progress
) -> Iterator[EnumeratedTerms]:
    """The terms of one operator and size, for each choice of sizes of its operands."""
    choices = product(range(ops), repeat=operator.arity)
    for sizes in (sizes for sizes in choices if sum(sizes) == max(0, ops - 1)):
        for operands in _tuples([np.array(found._by_size[size], np.int64) for size in sizes]):
            mask = np.full(len(operands), found.domain.mask(operator), np.int64)
            for column in operands.T:
                mask |= np.array(found.masks, np.int64)[column]
            operands = operands[kept := found.domain.allowed(mask, ops)]
            found.terms += len(operands)
            if found.terms > MOST_TERMS:
                raise OptionError(
                    f"--size: got more than {MOST_TERMS:,} terms, wanted fewer; try --size {ops - 1}, or fewer ops"
                )
            on_progress(f"terms of {ops} ops", found.terms, None, f"{found.classes:,} classes")
            if len(operands):
                yield _level(found, number, operator, operands, mask[kept])


def _level(found: Enumeration, number: int, operator: Operator, operands: Array, mask: Array) -> EnumeratedTerms:
    key, total = np.zeros(len(operands), np.uint64), np.zeros(len(operands), np.uint64)
    columns = found.domain.samples.positive()
    for start in range(0, len(operands), _CHUNK):
        part = slice(start, start + _CHUNK)
        values = _evaluate(found, operator, operands[part])
        key[part] = fingerprints(values, found.seed)
        total[part] = fingerprints(values[:, columns], found.seed + 1)
        sensible = found.domain.sensible(mask[part], values[:, columns]) & ~np.isnan(values).all(axis=1)
        key[part][~sensible] = _UNDEFINED
    return EnumeratedTerms(number, operands, mask, key, total)


_UNDEFINED = np.uint64(0)  # the key of terms without a use


def _evaluate(found: Enumeration, operator: Operator, operands: Array) -> Array:
    return operator.apply([found._values[column] for column in operands.T])


def _tuples(choices: Sequence[Array]) -> Iterator[Array]:
    """All tuples of operands as rows, in blocks."""
    if not choices:
        yield np.zeros((1, 0), np.int64)
        return
    rest = (
        np.stack([grid.ravel() for grid in np.meshgrid(*choices[1:], indexing="ij")], axis=1)
        if choices[1:]
        else np.zeros((1, 0), np.int64)
    )
    step = max(1, (1 << 18) // max(1, len(rest)))
    for start in range(0, len(choices[0]), step):
        first = choices[0][start : start + step]
        yield np.concatenate([np.repeat(first, len(rest))[:, None], np.tile(rest, (len(first), 1))], axis=1)


def _add(found: Enumeration, level: EnumeratedTerms, stored: bool) -> None:
    """New classes, with their values if `stored`, and the terms that are equal to representatives."""
    fresh = []
    for position, (key, total) in enumerate(zip(level.key.tolist(), level.total.tolist(), strict=True)):
        if key == int(_UNDEFINED):
            continue
        known = found.keys.setdefault(key, len(found.operators))
        operands = tuple(level.operands[position].tolist())
        if known < len(found.operators):
            found.equal.append((level.operator, operands, known))
            continue
        fresh.append(position)
        found.operators.append(level.operator)
        found.operands.append(operands)
        found.masks.append(int(level.mask[position]))
        found.totals.setdefault(total, []).append(known)
        found._by_size[-1].append(known)
    if stored and fresh:  # evaluated again: most terms of a level are no representatives
        operator, chosen = found.domain.operators[level.operator], level.operands[fresh]
        parts = [_evaluate(found, operator, chosen[start : start + _CHUNK]) for start in range(0, len(fresh), _CHUNK)]
        found._values = np.concatenate(parts if found._values is None else [found._values, *parts])


def equations(found: Enumeration, on_progress: Progress = no_progress) -> Iterator[TermPair]:
    """Pairs of equal terms: each term with its representative, and representatives that differ in where they are defined."""
    for done, (operator, operands, number) in enumerate(found.equal):
        on_progress("equations", done, len(found.equal), "")
        left, right = found.pattern(operator, operands), found.representative(number)
        if found.domain.canonical(left) or found.domain.canonical(right):
            yield TermPair(left, right)
    for numbers in found.totals.values():
        if len(numbers) > 1:
            yield from _definedness_pairs(found, numbers, on_progress)


def _definedness_pairs(found: Enumeration, numbers: Sequence[int], on_progress: Progress) -> Iterator[TermPair]:
    """Of representatives that are equal at positive inputs, those where one is defined more often than the other."""
    values = np.stack([found.value(number) for number in numbers])
    defined = ~np.isnan(values)
    if (defined == defined[0]).all():
        return
    for position, number in enumerate(numbers):
        on_progress("equations", position, len(numbers), "by where they are defined")
        if not found.domain.canonical(left := found.representative(number)):
            continue
        wider = (defined >= defined[position]).all(axis=1) & (defined != defined[position]).any(axis=1)
        for other in wider.nonzero()[0].tolist():
            if agree(values[position], values[other]):
                yield TermPair(left, found.representative(numbers[other]), True, False)
