"""Bottom-up enumeration of terms by their number of ops, one representative for each class of equal values.

Operands of new terms are representatives only (observational equivalence; Ruler, OOPSLA'21). A term is a row of integers until
it is part of an pair. Values of the largest terms are not stored.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from mirage_eg.egraph.laws import Pattern
from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.synthesis.domain import Domain, Operator, Progress, Type, no_progress
from mirage_eg.lab.synthesis.fingerprint import agree, fingerprints
from mirage_eg.lab.synthesis.term_pair import TermPair

Array = Any
MOST_TERMS = 20_000_000
_CHUNK = 1 << 13  # terms that are evaluated at once


@dataclass(frozen=True, slots=True)
class EnumeratedTerms:
    """The terms of one size and type, in columns: operator, operands (numbers of representatives), mask, and two keys.

    `key` is of all values, `total` of the columns in which every input is positive.
    """

    type: Type
    operator: Array
    operands: Array
    mask: Array
    key: Array
    total: Array


@dataclass(slots=True)
class Enumeration:
    """All terms up to a size, and the representatives of their classes."""

    domain: Domain
    seed: int
    terms: int = 0
    operators: list[int] = field(default_factory=list)  # of each representative
    operands: list[tuple[int, ...]] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    keys: dict[int, int] = field(default_factory=dict)  # the representative of each key
    totals: dict[int, list[int]] = field(default_factory=dict)  # the representatives of each key of total columns
    equal: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)  # operator, operands, representative
    _values: dict[Type, Array] = field(default_factory=dict)
    _rows: list[int] = field(default_factory=list)  # of each representative, its row among the values of its type
    _by_size: list[dict[Type, list[int]]] = field(default_factory=list)

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
        stored = self._values.get(self.types[number])
        if self._rows[number] >= 0 and stored is not None:
            return stored[self._rows[number]]
        operator = self.domain.operators[self.operators[number]]
        return operator.apply([self.value(it)[None] for it in self.operands[number]])[0]


def enumerate_terms(domain: Domain, size: int, seed: int = 0, on_progress: Progress = no_progress) -> Enumeration:
    """All terms with up to `size` ops.

    Raises OptionError: there are more than MOST_TERMS terms; the message has a smaller size.
    """
    found = Enumeration(domain, seed)
    for ops in range(size + 1):
        found._by_size.append({})
        levels = []
        for number, operator in enumerate(domain.operators):
            if (operator.arity == 0) != (ops == 0):
                continue
            levels += list(_applications(found, number, operator, ops, on_progress))
        _add(found, levels, stored=ops < size)
    return found


def _applications(
    found: Enumeration, number: int, operator: Operator, ops: int, on_progress: Progress
) -> Iterator[EnumeratedTerms]:
    """The terms of one operator and size, for each choice of types and sizes of its operands."""
    for sizes in _compositions(ops - 1, operator.arity):
        for types in product(*(sorted(found._by_size[size], key=repr) for size in sizes)):
            result = operator.result(types)
            if result is None:
                continue
            choices = [np.array(found._by_size[size][type_]) for size, type_ in zip(sizes, types, strict=True)]
            for operands in _tuples(choices):
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
                    yield _level(found, number, operator, result, operands, mask[kept])


def _level(found: Enumeration, number: int, operator: Operator, result: Type, operands: Array, mask: Array) -> EnumeratedTerms:
    key, total = np.zeros(len(operands), np.uint64), np.zeros(len(operands), np.uint64)
    columns = found.domain.total_columns(result)
    salt = hash_of(result)
    for start in range(0, len(operands), _CHUNK):
        part = slice(start, start + _CHUNK)
        values = _evaluate(found, operator, operands[part])
        key[part] = fingerprints(values, found.seed) ^ salt
        total[part] = fingerprints(values[:, columns], found.seed + 1) ^ salt
        sensible = found.domain.sensible(mask[part], values[:, columns]) & ~np.isnan(values).all(axis=1)
        key[part][~sensible] = _UNDEFINED
    return EnumeratedTerms(result, np.full(len(operands), number), operands, mask, key, total)


_UNDEFINED = np.uint64(0)  # the key of terms without a use


def hash_of(type_: Type) -> np.uint64:
    """A key of a type that is the same in all processes."""
    return np.uint64(int.from_bytes(hashlib.blake2b(repr(type_).encode(), digest_size=8).digest(), "little"))


def _evaluate(found: Enumeration, operator: Operator, operands: Array) -> Array:
    rows = np.array(found._rows)
    return operator.apply([found._values[found.types[column[0]]][rows[column]] for column in operands.T])


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


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 0:
        if total <= 0:
            yield ()
        return
    for first in range(total + 1) if parts > 1 else (total,):
        for rest in _compositions(total - first, parts - 1) if parts > 1 else ((),):
            yield (first, *rest)


def _add(found: Enumeration, levels: Sequence[EnumeratedTerms], stored: bool) -> None:
    """New classes, and the terms that are equal to representatives."""
    for level in levels:
        fresh = []
        for position, (key, total) in enumerate(zip(level.key.tolist(), level.total.tolist(), strict=True)):
            if key == int(_UNDEFINED):
                continue
            known = found.keys.setdefault(key, len(found.operators))
            operands = tuple(level.operands[position].tolist())
            if known < len(found.operators):
                found.equal.append((int(level.operator[position]), operands, known))
                continue
            fresh.append(position)
            found.operators.append(int(level.operator[position]))
            found.operands.append(operands)
            found.types.append(level.type)
            found.masks.append(int(level.mask[position]))
            found.totals.setdefault(total, []).append(known)
            found._by_size[-1].setdefault(level.type, []).append(known)
        _store(found, level, fresh, stored)


def _store(found: Enumeration, level: EnumeratedTerms, fresh: Sequence[int], stored: bool) -> None:
    """The values of new representatives, evaluated again: most terms of a level are none."""
    if not stored:
        found._rows += [-1] * len(fresh)
        return
    if not fresh:
        return
    operator = found.domain.operators[int(level.operator[0])]
    parts = [
        _evaluate(found, operator, level.operands[fresh[start : start + _CHUNK]]) for start in range(0, len(fresh), _CHUNK)
    ]
    values = np.concatenate(parts)
    before = found._values.get(level.type)
    start = 0 if before is None else len(before)
    found._rows += range(start, start + len(values))
    found._values[level.type] = values if before is None else np.concatenate([before, values])


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
