"""Memo of kernel results, shared by all µGraphs of a program that apply equal kernels to equal operands. Trusted.

µGraphs of one program share kernels, and the result of a correct kernel is a value of the program, so all later kernels have
equal operands too. Two operands are equal if they are the same input, or if their bits have the same SHA-256; a value from the
memo is therefore the value that computation would give. `MemoBudget` bounds the bytes in the memo. A result whose operands are
not in the memo is not stored either. Only on NumPy: on a GPU a comparison of bits would wait for the device.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.field_semantics import Component
from mirage_eg.backends.evaluator.finite_field import ComponentKey, FieldAlgebra, FieldValue
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Kind

MEMO_BYTES = 1 << 30  # of all memos of one program; beyond it a value is computed again for each use

V = TypeVar("V")


class Memo(Protocol[V]):
    """The interface between `evaluate` and a memo, for the nodes of a kernel graph."""

    def begin(self, inputs: Sequence[V]) -> None:
        """An evaluation begins, with these inputs."""
        ...

    def results(self, item: Node, dtype: DType, operands: Sequence[V], compute: Callable[[Sequence[V]], list[V]]) -> list[V]:
        """`compute(operands)`, from the memo where possible, for a node whose first result has type `dtype`."""
        ...


class MemoBudget:
    """The bytes that the memos of one program may hold together; a memo that needs more has the other memos cleared."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._taken: dict[Contents, int] = {}

    def holds(self, size: int, owner: "Contents") -> bool:
        """Whether a memo may store `size` more bytes."""
        for other in [*self._taken] if size > self.left else ():
            if other is not owner:
                other.clear()
        return size <= self.left

    def take(self, size: int, owner: "Contents") -> None:
        """Count bytes that a memo stores."""
        self.left -= size
        self._taken[owner] = self._taken.get(owner, 0) + size

    def give_back(self, owner: "Contents") -> None:
        """Count the bytes of a memo that was cleared."""
        self.left += self._taken.pop(owner, 0)


class Contents:
    """A number for each content, equal for equal contents, and the results that one memo holds."""

    def __init__(self, budget: MemoBudget | None) -> None:
        self.budget = budget or MemoBudget(MEMO_BYTES)
        self.results: dict[Hashable, Any] = {}
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable) -> int:
        """The number of a content."""
        return self._numbers.setdefault(key, len(self._numbers))

    def new(self) -> int:
        """The number of a content that equals no other."""
        return self.number(("input", len(self._numbers)))

    def store(self, key: Hashable, results: Any, size: int) -> None:
        self.results[key] = results
        self.budget.take(size, self)

    def clear(self) -> None:
        self.results.clear()
        self.budget.give_back(self)


def _bits(x: Array | None) -> Hashable:
    return None if x is None else (x.shape, x.dtype.str, sha256(np.ascontiguousarray(x).data).digest())


class NumericMemo:
    """The memo of one algebra of numbers."""

    def __init__(self, budget: MemoBudget | None = None) -> None:
        self._contents = Contents(budget)
        self._numbers: dict[int, tuple[ref[Array], int]] = {}  # by identity, of live arrays

    def begin(self, inputs: Sequence[Array]) -> None:
        for x in inputs:
            if self._content(x) is None:
                self._numbers[id(x)] = ref(x), self._contents.new()

    def results(
        self, item: Node, dtype: DType, operands: Sequence[Array], compute: Callable[[Sequence[Array]], list[Array]]
    ) -> list[Array]:
        """See `Memo`; `dtype` is part of the key: operands of equal bits may differ in type, and their results in rounding."""
        contents = [*map(self._content, operands)]
        if None in contents:
            return compute(operands)
        key = item.op, item.attributes, dtype, tuple(contents)
        if key in self._contents.results:
            results: list[Array] = self._contents.results[key]
            return results
        results = compute(operands)
        moved = item.kind is Kind.REARRANGEMENT
        size = sum(x.nbytes for x in results if not (moved and any(np.may_share_memory(x, y) for y in operands)))
        if self._contents.budget.holds(size, self._contents):
            for index, result in enumerate(results):
                self._numbers[id(result)] = ref(result), self._contents.number((key, index) if moved else _bits(result))
            self._contents.store(key, results, size)
        return results

    def clear(self) -> None:
        self._contents.clear()

    def _content(self, x: Array) -> int | None:
        if id(x) not in self._numbers:
            return None
        array, content = self._numbers[id(x)]
        return content if array() is x else None  # a dead array's identity may belong to another one


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """The components of a value in the memo: component k is a function of the components `reads(k)` of other values.

    `found` has, for each component read so far, the number of its content and, for results of ops, the component itself.
    """

    reads: "Callable[[int], Iterable[tuple[_Entry, int]]]"
    compute: Callable[[int], tuple[int, Component | None]]
    found: dict[int, tuple[int, Component | None]] = field(default_factory=dict)

    def find(self, k: int) -> tuple[int, Component | None]:
        """Component k; operands are computed first. No recursion: graphs are deep."""
        stack = [(self, k, False)]
        while stack:
            entry, level, visited = stack.pop()
            if visited:
                entry.found[level] = entry.compute(level)
            elif level not in entry.found:
                stack.append((entry, level, True))
                stack += [(read, below, False) for read, below in entry.reads(level) if below not in read.found]
        return self.found[k]


class FieldMemo:
    """The memo of one trial in the field. Values are lazy: each component is looked up when it is read."""

    def __init__(self, algebra: FieldAlgebra, budget: MemoBudget | None = None) -> None:
        self._algebra = algebra
        self._contents = Contents(budget)
        self._entries: WeakKeyDictionary[FieldValue, _Entry] = WeakKeyDictionary()
        self._promised = 0  # bytes of the current evaluation, whose values are not read before it ends

    def __contains__(self, value: FieldValue) -> bool:
        """Whether a value's components are stored here."""
        return value in self._entries

    def begin(self, inputs: Sequence[FieldValue]) -> None:
        self._promised = 0
        for x in inputs:
            if x not in self._entries:
                self._entries[x] = self._input(self._contents.new())

    def results(
        self,
        item: Node,
        dtype: DType,
        operands: Sequence[FieldValue],
        compute: Callable[[Sequence[FieldValue]], list[FieldValue]],
    ) -> list[FieldValue]:
        """See `Memo`; a field has no types."""
        results = compute(operands)
        if not all(x in self._entries for x in operands):
            return results
        if item.kind is Kind.REARRANGEMENT:
            for index, result in enumerate(results):
                if result not in self._entries:
                    self._entries[result] = self._rearranged(item, operands, index)
            return results
        size = sum(_ELEMENT * x.levels * prod(x.shape) for x in results)
        if not self._contents.budget.holds(self._promised + size, self._contents):
            return results
        self._promised += size
        return [self._stored(item, operands, results, index) for index in range(len(results))]

    def clear(self) -> None:
        self._contents.clear()

    def _input(self, number: int) -> _Entry:
        return _Entry(lambda k: (), lambda k: (self._contents.number((number, k)), None))

    def _rearranged(self, item: Node, operands: Sequence[FieldValue], index: int) -> _Entry:
        entries = [self._entries[x] for x in operands]

        def compute(k: int) -> tuple[int, None]:
            contents = tuple(entry.found[k][0] for entry in entries)
            return self._contents.number((item.op, item.attributes, index, contents)), None

        return _Entry(lambda k: [(entry, k) for entry in entries], compute)

    def _stored(self, item: Node, operands: Sequence[FieldValue], results: Sequence[FieldValue], index: int) -> FieldValue:
        """A value that reads its components from the memo."""
        entry = _Entry(
            lambda k: [(self._entries[x], below) for x, below in self._reads(operands, _together(results, index, k)[0], k)],
            lambda k: self._compute(item, operands, results, index, k),
        )

        def component(k: int) -> Component:  # refers to no value: values die when the evaluator drops them
            stored = entry.find(k)[1]
            assert stored is not None
            return stored

        x = results[index]
        value = FieldValue(x.shape, x.levels, x.unfaithful, lambda k: ((), lambda: component(k)))
        self._entries[value] = entry
        return value

    def _reads(self, operands: Sequence[FieldValue], together: Sequence[FieldValue], k: int) -> list[ComponentKey]:
        """The components of operands that component k of these results is a function of."""
        return [key for key in self._algebra.needs(together, k) if key[0] in operands and key[1] < key[0].levels]

    def _compute(
        self, item: Node, operands: Sequence[FieldValue], results: Sequence[FieldValue], index: int, k: int
    ) -> tuple[int, Component]:
        """The number of the content of component k of one result, and the component; its operands' are in the memo."""
        together, position = _together(results, index, k)
        reads = tuple(
            (operands.index(x), below, self._entries[x].found[below][0]) for x, below in self._reads(operands, together, k)
        )
        key = item.op, item.attributes, tuple(x.levels for x in operands), k, index if k else None, reads
        if key not in self._contents.results:
            components = [_without_empty_mask(component) for component in self._algebra.read(together, k)]
            entries = [(self._contents.number((_bits(x.residues), _bits(x.undefined))), x) for x in components]
            self._contents.store(key, entries, sum(map(_nbytes, components)))
        stored: list[tuple[int, Component]] = self._contents.results[key]
        return stored[position]


def _together(results: Sequence[FieldValue], index: int, k: int) -> tuple[Sequence[FieldValue], int]:
    """The results to read at once with this one, and its index among them: all for p, where all are read."""
    return (results, index) if k == 0 else ([results[index]], 0)


_ELEMENT = np.dtype(np.float64).itemsize + np.dtype(bool).itemsize  # bytes: a residue, and its entry in the mask


def _nbytes(x: Component) -> int:
    arrays = [x.residues] if x.undefined is None else [x.residues, x.undefined]
    return sum(int(array.nbytes) for array in arrays)


def _without_empty_mask(x: Component) -> Component:
    """x, without its mask if all elements are defined."""
    return x if x.undefined is None or bool(x.undefined.any()) else Component(x.residues)
