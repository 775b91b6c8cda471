"""Bottom-up enumeration of terms over whole tensors, evaluated in batches on three trials of whole numbers.

A type is a shape with the tree of concatenations in each dim. Operands are representatives of classes only, and no terms of
constants alone: those are folded, not rewritten. A term's size is the number of its different ops, so that `Add x x` of a
product x has one op more than x. A term is a row of numbers until it is part of a pair. From CANONICAL_FROM ops on, the largest
terms are evaluated only if their variables come in order.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations, product
from typing import Any

import numpy as np

from mirage_eg.egraph.tensor.ops import TensorOp, constant
from mirage_eg.egraph.tensor.term import Equation, Term
from mirage_eg.lab.synthesis.fingerprint import exact_fingerprints
from mirage_eg.lab.synthesis.term_pair import Progress, no_progress

Array = Any
Extent = Any  # int | tuple[Extent, Extent]: a concatenation
Type = tuple[Extent, ...]

TRIALS = 3
CANONICAL_FROM = 4
CHAINED_UP_TO = 2  # ops of terms that are also paired with the term before them in their class
CHUNK = 1 << 13  # terms that are evaluated at once
KERNEL = (3, 3)
PLANE = (3, 4)
_DATA: Type = (1, 2, *PLANE)
_WEIGHT: Type = (2, 2, *KERNEL)
_SMALL: Type = (2, 2, 1, 1)
VARIABLES: tuple[tuple[Type, str], ...] = (((), "rs"), ((2, 2), "xyz"), (_DATA, "abc"), (_WEIGHT, "uvw"), (_SMALL, "pq"))
_CONSTANT_TYPES = {"One": ((2, 2), _DATA), "Imatmul": ((2, 2),), "Iconv": (_WEIGHT,), "Cpool": (_WEIGHT,)}


def extent(of: Extent) -> int:
    """The number of entries along a dim."""
    return of if isinstance(of, int) else extent(of[0]) + extent(of[1])


def result_type(op: TensorOp, types: Sequence[Type]) -> Type | None:
    """The type of the result, or None where the operands do not fit."""
    if any(rank is not None and len(it) != rank for rank, it in zip(op.ranks, types, strict=True)) or (
        () in types[:1] and op.base not in ("Add", "Mul", "Binary")
    ):
        return None
    first, last = types[0], types[-1]
    match op.base:
        case "Add" | "Mul" | "Binary":
            return first if first == last else None
        case "Matmul":
            return (first[0], last[1]) if first[1] == last[0] else None
        case "Transpose":
            return first[::-1]
        case "Conv2d":
            return (
                (first[0], last[0], *PLANE)
                if first[2:] == PLANE and last[2:] in (KERNEL, (1, 1)) and first[1] == last[1]
                else None
            )
        case "AvgPool" | "MaxPool":
            return first if first[2:] == PLANE else None
        case "Enlarge":
            return (*first[:2], *KERNEL) if first[2:] == (1, 1) else None
        case "Concat":
            if len(first) != len(last) or any(a != b for i, (a, b) in enumerate(zip(first, last, strict=True)) if i != op.axis):
                return None
            return (*first[: op.axis], (first[op.axis], last[op.axis]), *first[op.axis + 1 :])
        case "Split0" | "Split1":
            cut = first[op.axis]
            return None if isinstance(cut, int) else (*first[: op.axis], cut[op.base == "Split1"], *first[op.axis + 1 :])
        case _:
            return first


@dataclass(slots=True)
class TensorTerms:
    """All terms up to a size: the representatives of their classes in columns, and the pairs of equal terms."""

    ops: tuple[TensorOp, ...]
    seed: int
    terms: int = 0
    leaves: list[Term] = field(default_factory=list)  # the first representatives
    pairs: list[Array] = field(default_factory=list)  # rows of op, operands, the representative of the class
    op: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    operands: Array = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    size: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    kind: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # the number of its type
    row: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # among the values of its type; -1: not stored
    order: Array = field(default_factory=lambda: np.zeros((0, len(VARIABLES)), np.int64))  # of its variables
    key: Array = field(default_factory=lambda: np.zeros(0, np.uint64))  # of its values and shape
    types: list[Type] = field(default_factory=list)
    values: dict[int, Array] = field(default_factory=dict)  # by type

    @property
    def classes(self) -> int:
        """The number of classes of equal values and types."""
        return len(self.op)

    def term(self, number: int) -> Term:
        """The term of a representative."""
        if number < len(self.leaves):
            return self.leaves[number]
        return self.application(int(self.op[number]), *self.operands[number].tolist())

    def application(self, op: int, first: int, second: int) -> Term:
        """The term of an op and representatives."""
        row = self.ops[op]
        return (row.name, *(self.term(it) for it in (first, second)[: row.arity]))

    def equations(self, on_progress: Progress = no_progress) -> Iterator[Equation]:
        """The pairs of equal terms, those that differ in the tree of concatenations last."""
        pairs = np.concatenate(self.pairs) if self.pairs else np.zeros((0, 4), np.int64)
        sizes = [size for size, level in enumerate(self.pairs, 1) for _ in range(len(level))]
        last: dict[int, Term] = {}  # small classes in a chain, too: x (y + y), (x + x) y, x y + x y have three laws
        for done, (op, first, second, number) in enumerate(pairs.tolist()):
            if done % 1000 == 0:
                on_progress("pairs", done, len(pairs), "")
            term = self.application(op, first, second)
            yield term, self.term(number)
            if sizes[done] == self.size[number] <= CHAINED_UP_TO:
                if number in last:
                    yield term, last[number]
                last[number] = term
        order = np.argsort(self.key, kind="stable")
        for place in np.flatnonzero(self.key[order][1:] == self.key[order][:-1]).tolist():
            yield self.term(int(order[place + 1])), self.term(int(order[place]))

    def type_number(self, of: Type) -> int:
        """The number of a type, new or known."""
        if of not in self.types:
            self.types.append(of)
        return self.types.index(of)


def enumerate_tensor_terms(
    ops: Sequence[TensorOp], size: int, seed: int = 0, on_progress: Progress = no_progress
) -> TensorTerms:
    """All terms with up to `size` ops; `size` is at most 4."""
    applied = tuple(it for it in ops if it.arity)
    found = TensorTerms(applied, seed)
    _add_leaves(found, [it.name for it in ops if not it.arity])
    for number in range(1, size + 1):
        levels: list[Level] = []
        chosen = _Operands(found, number)
        types = list(enumerate(found.types))
        for op, row in enumerate(applied):
            for choice in product(types, repeat=row.arity):
                result = result_type(row, [of for _, of in choice])
                if result is None:
                    continue
                operands = chosen.of([kind for kind, _ in choice])
                if number == size and size >= CANONICAL_FROM:
                    operands = operands[np.isin(_joined(found.order, operands), _CANONICAL).all(axis=1)]
                if len(operands):
                    found.terms += len(operands)
                    levels.append(_level(found, op, found.type_number(result), operands))
                    on_progress(f"terms of {number} ops", found.terms, None, f"{found.classes:,} classes")
        _classify(found, levels, number, stored=number < size)
    return found


Level = tuple[int, int, Array, Array]  # the op, the type, the operands and the keys of some terms


def _add_leaves(found: TensorTerms, constants: Sequence[str]) -> None:
    generator = np.random.default_rng(found.seed)
    for group, (of, names) in enumerate(VARIABLES):
        for index, name in enumerate(names):
            order = np.zeros((1, len(VARIABLES)), np.int64)
            order[0, group] = _ORDERS.index((index,))
            _add_leaf(found, name, of, generator.integers(-9, 10, (TRIALS, *map(extent, of))), order)
    for name in constants:
        for of in _CONSTANT_TYPES[name]:
            value = np.stack([constant(name, tuple(map(extent, of)))] * TRIALS)
            _add_leaf(found, (name,), of, value, np.zeros((1, len(VARIABLES)), np.int64))


def _add_leaf(found: TensorTerms, leaf: Term, of: Type, value: Array, order: Array) -> None:
    kind = found.type_number(of)
    before = found.values.get(kind, np.zeros((0, *value.shape), np.int64))
    found.values[kind] = np.concatenate((before, value[None]))
    found.leaves.append(leaf)
    found.terms += 1
    columns = (np.array([-1]), np.zeros((1, 2), np.int64), np.array([0]), np.array([kind]), np.array([len(before)]), order)
    _append(found, *columns, _keys(found, kind, value[None]))


def _append(found: TensorTerms, *columns: Array) -> None:
    for name, column in zip(("op", "operands", "size", "kind", "row", "order", "key"), columns, strict=True):
        setattr(found, name, np.concatenate((getattr(found, name), column)))


class _Operands:
    """The operands of the terms of one size, by their types."""

    def __init__(self, found: TensorTerms, number: int) -> None:
        self._below = number - 1
        self._sharing = _sharing(found, number - 1)
        kinds = found.kind[self._sharing]
        self._kinds = len(found.types)  # at this level
        self._codes = kinds[:, 0] * self._kinds + kinds[:, 1]
        order = np.argsort(self._codes, kind="stable")
        self._codes, self._sharing = self._codes[order], self._sharing[order]
        places = np.lexsort((found.kind, found.size))
        places = places[_operand(found)[places]]
        self._places = {
            (size, kind): places[start:stop] for size, kind, start, stop in _runs(found.size[places], found.kind[places])
        }

    def of(self, kinds: Sequence[int]) -> Array:
        """Pairs of representatives; the second of a unary op is 0."""
        none = np.zeros(0, np.int64)
        if len(kinds) == 1:
            first = self._places.get((self._below, kinds[0]), none)
            return np.stack((first, np.zeros_like(first)), axis=1)
        parts = []
        for size in range(self._below + 1):
            left = self._places.get((size, kinds[0]), none)
            right = self._places.get((self._below - size, kinds[1]), none)
            parts.append(np.stack((np.repeat(left, len(right)), np.tile(right, len(left))), axis=1))
        code = kinds[0] * self._kinds + kinds[1]
        start, stop = np.searchsorted(self._codes, (code, code + 1))
        return np.concatenate((*parts, self._sharing[start:stop]))


def _runs(sizes: Array, kinds: Array) -> Iterator[tuple[int, int, int, int]]:
    changes = np.flatnonzero((np.diff(sizes) != 0) | (np.diff(kinds) != 0)) + 1
    bounds = [0, *changes.tolist(), len(sizes)]
    for start, stop in pairwise(bounds):
        yield int(sizes[start]), int(kinds[start]), start, stop


def _sharing(found: TensorTerms, below: int) -> Array:
    """Pairs that share ops and have `below` different ones together."""
    parts = [np.zeros((0, 2), np.int64)]
    whole = np.flatnonzero((found.size == below) & (found.size > 0))
    inner = found.operands[whole]
    deeper = found.operands[inner].reshape(len(whole), 4)
    for part in (whole[:, None], inner, deeper):  # one is the other, or a part of it
        for column in part.T:
            kept = (found.size[column] > 0) & (found.size[whole] > 0)
            parts += [np.stack(pair, axis=1)[kept] for pair in ((whole, column), (column, whole))]
    if below == 3:  # two terms of two ops each, with one op in common
        pairs = np.flatnonzero(found.size == 2)
        children = found.operands[pairs]
        common = np.where(found.size[children[:, 0]] == 1, children[:, 0], children[:, 1])
        for op in np.unique(common):
            group = pairs[common == op]
            parts.append(np.stack((np.repeat(group, len(group)), np.tile(group, len(group))), axis=1))
    every = np.concatenate(parts)
    every = every[_operand(found)[every].all(axis=1)]
    return np.unique(every, axis=0) if len(every) else every


def _operand(found: TensorTerms) -> Array:
    """Which representatives may be operands: those with variables, and constants."""
    return (found.size == 0) | found.order.any(axis=1)


def _level(found: TensorTerms, op: int, kind: int, operands: Array) -> Level:
    keys = [
        _keys(found, kind, _evaluate(found, op, operands[start : start + CHUNK])) for start in range(0, len(operands), CHUNK)
    ]
    return op, kind, operands, np.concatenate(keys)


def _evaluate(found: TensorTerms, op: int, operands: Array) -> Array:
    row = found.ops[op]
    first = int(found.kind[operands[0, 0]])
    if row.base in ("Split0", "Split1"):
        return row.apply(found.values[first][found.row[operands[:, 0]]], extent(found.types[first][row.axis][0]))
    columns = operands[:, : row.arity].T
    return row.apply(*(found.values[int(found.kind[column[0]])][found.row[column]] for column in columns))


def _hash_of(value: object) -> np.uint64:
    """A key that is the same in all processes."""
    return np.uint64(int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little"))


def _keys(found: TensorTerms, kind: int, values: Array) -> Array:
    shape = tuple(map(extent, found.types[kind]))
    return exact_fingerprints(values.reshape(len(values), -1), found.seed) ^ _hash_of(shape)


def _classify(found: TensorTerms, levels: Sequence[Level], number: int, stored: bool) -> None:
    """New classes, and pairs of terms with representatives."""
    if not levels:
        return
    op = np.concatenate([np.full(len(operands), it) for it, _, operands, _ in levels])
    kind = np.concatenate([np.full(len(operands), it) for _, it, operands, _ in levels])
    operands = np.concatenate([it for _, _, it, _ in levels])
    key = np.concatenate([it for _, _, _, it in levels])
    salts = np.array([_hash_of(("type", of)) for of in found.types])
    every = np.concatenate((found.key ^ salts[found.kind], key ^ salts[kind]))
    _, first, inverse = np.unique(every, return_index=True, return_inverse=True)
    known = len(found.op)
    fresh = np.flatnonzero(first[inverse[known:]] == np.arange(known, len(every)))
    place = np.full(len(every), -1)
    place[:known] = np.arange(known)
    place[known + fresh] = known + np.arange(len(fresh))
    again = np.setdiff1d(np.arange(len(key)), fresh)
    of = place[first[inverse[known + again]]]
    found.pairs.append(np.column_stack((op[again], operands[again], of)))
    row = np.full(len(fresh), -1)
    order = _joined(found.order, operands[fresh])
    unary = np.array([it.arity == 1 for it in found.ops])[op[fresh]]
    order[unary] = found.order[operands[fresh[unary], 0]]
    sizes = np.full(len(fresh), number)
    _append(found, op[fresh], operands[fresh], sizes, kind[fresh], row, order, key[fresh])
    if stored:
        _store(found, known)


def _store(found: TensorTerms, known: int) -> None:
    """The values of new representatives, evaluated again: few terms of a level are new."""
    numbers = np.arange(known, len(found.op))
    for op, kind in sorted(set(zip(found.op[known:].tolist(), found.kind[known:].tolist(), strict=True))):
        chosen = numbers[(found.op[known:] == op) & (found.kind[known:] == kind)]
        inner = found.kind[found.operands[chosen]] if found.ops[op].arity == 2 else found.kind[found.operands[chosen]][:, :1]
        for types in np.unique(inner, axis=0):
            part = chosen[(inner == types).all(axis=1)]
            values = _evaluate(found, op, found.operands[part])
            before = found.values.get(kind)
            found.row[part] = np.arange(len(part)) + (0 if before is None else len(before))
            found.values[kind] = values if before is None else np.concatenate((before, values))


_MOST = 3  # variables of one type
_ORDERS = [order for length in range(_MOST + 1) for order in permutations(range(_MOST), length)]
_CANONICAL = [number for number, order in enumerate(_ORDERS) if order == tuple(range(len(order)))]
_JOINED = np.array(
    [[_ORDERS.index((*one, *(it for it in other if it not in one))) for other in _ORDERS] for one in _ORDERS], np.int64
)


def _joined(orders: Array, operands: Array) -> Array:
    """The orders in which variables of each type first appear in pairs of terms."""
    return _JOINED[orders[operands[:, 0]], orders[operands[:, 1]]]
