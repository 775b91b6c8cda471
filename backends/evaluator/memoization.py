"""Memo of kernel results, shared by all µGraphs of a program that apply equal kernels to equal operands. Trusted.

µGraphs of one program share kernels, and the result of a correct kernel is a value of the program, so all later kernels have
equal operands too. Two operands are equal if they are the same input, or if their bits have the same SHA-256; a value from the
memo is therefore the value that computation would give. `MemoBudget` bounds the bytes in the memo. A result whose operands are
not in the memo is not stored either. Only on NumPy: on a GPU a comparison of bits would wait for the device.
"""

from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from math import prod
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.field_semantics import Component
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Node
from mirage_eg.ir.ops import OPS, Kind

MEMO_BYTES = 1 << 30  # of all that is kept for one program; what is made then is made again wherever it is wanted

V = TypeVar("V")


class Memo(Protocol[V]):
    """What `evaluate` asks about the nodes of a kernel graph."""

    def given(self, inputs: Sequence[V]) -> None:
        """An evaluation begins, with these inputs."""
        ...

    def made(self, item: Node, dtype: DType, operands: Sequence[V], make: Callable[[Sequence[V]], list[V]]) -> list[V]:
        """What `make` makes of these operands, or would, for a node whose first result is held in `dtype`."""
        ...


class MemoBudget:
    """The bytes that the draws of one program may keep together; a draw that needs more has the other draws forget."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._taken: dict[_Contents, int] = {}

    def holds(self, size: int, of: "_Contents") -> bool:
        """Whether `size` bytes can be kept for a draw."""
        for other in [*self._taken] if size > self.left else ():
            if other is not of:
                other.forget()
        return size <= self.left

    def take(self, size: int, of: "_Contents") -> None:
        """Count bytes that are kept for a draw."""
        self.left -= size
        self._taken[of] = self._taken.get(of, 0) + size

    def give_back(self, of: "_Contents") -> None:
        """A draw has forgotten what it kept."""
        self.left += self._taken.pop(of, 0)


class _Contents:
    """A number for each content, the same for equal ones, and the results that are kept for one draw."""

    def __init__(self, room: MemoBudget | None) -> None:
        self.room = room or MemoBudget(MEMO_BYTES)
        self.results: dict[Hashable, Any] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        """The number of a content."""
        return self._numbers.setdefault(key, len(self._numbers))

    def new(self) -> int:
        """The number of a content that equals no other."""
        return self.of(("given", len(self._numbers)))

    def keep(self, key: Hashable, results: Any, size: int) -> None:
        self.results[key] = results
        self.room.take(size, self)

    def forget(self) -> None:
        self.results.clear()
        self.room.give_back(self)


def _bits(x: Array | None) -> Hashable:
    return None if x is None else (x.shape, x.dtype.str, sha256(np.ascontiguousarray(x).data).digest())


class NumericMemo:
    """What one algebra of numbers makes."""

    def __init__(self, room: MemoBudget | None = None) -> None:
        self._contents = _Contents(room)
        self._of: dict[int, tuple[ref[Array], int]] = {}  # by identity, of arrays that live

    def given(self, inputs: Sequence[Array]) -> None:
        """As `Memo` says."""
        for x in inputs:
            if self._content(x) is None:
                self._of[id(x)] = ref(x), self._contents.new()

    def made(
        self, item: Node, dtype: DType, operands: Sequence[Array], make: Callable[[Sequence[Array]], list[Array]]
    ) -> list[Array]:
        """As `Memo` says; equal numbers may be operands of other types, after which results are rounded otherwise."""
        contents = [*map(self._content, operands)]
        if None in contents:
            return make(operands)
        key = item.op, item.attributes, dtype, tuple(contents)
        if key in self._contents.results:
            results: list[Array] = self._contents.results[key]
            return results
        results = make(operands)
        moved = OPS[item.op].kind is Kind.REARRANGEMENT
        size = sum(x.nbytes for x in results if not (moved and any(np.may_share_memory(x, of) for of in operands)))
        if self._contents.room.holds(size, self._contents):
            for place, result in enumerate(results):
                self._of[id(result)] = ref(result), self._contents.of((key, place) if moved else _bits(result))
            self._contents.keep(key, results, size)
        return results

    def forget(self) -> None:
        """Keep nothing any more of what was made."""
        self._contents.forget()

    def _content(self, x: Array) -> int | None:
        if id(x) not in self._of:
            return None
        array, content = self._of[id(x)]
        return content if array() is x else None  # another array may have taken its place


class FieldMemo:
    """What is made in the field of one draw. Values are lazy here too: each component is looked up when it is read."""

    def __init__(self, algebra: FieldAlgebra, room: MemoBudget | None = None) -> None:
        self._algebra = algebra
        self._contents = _Contents(room)
        self._of: WeakKeyDictionary[FieldValue, Callable[[int], int]] = WeakKeyDictionary()
        self._promised = 0  # bytes of the evaluation that has begun; nothing of it is read before it ends

    def __contains__(self, value: FieldValue) -> bool:
        """Whether a value's components are kept here."""
        return value in self._of

    def given(self, inputs: Sequence[FieldValue]) -> None:
        """As `Memo` says."""
        self._promised = 0
        for x in inputs:
            if x not in self._of:
                self._of[x] = self._input(self._contents.new())

    def made(
        self, item: Node, dtype: DType, operands: Sequence[FieldValue], make: Callable[[Sequence[FieldValue]], list[FieldValue]]
    ) -> list[FieldValue]:
        """As `Memo` says; a field knows no types."""
        results = make(operands)
        if not all(x in self._of for x in operands):
            return results
        if OPS[item.op].kind is Kind.REARRANGEMENT:
            for place, result in enumerate(results):
                if result not in self._of:
                    self._of[result] = self._moved(item, operands, place)
            return results
        size = sum(_ELEMENT * x.levels * prod(x.shape) for x in results)
        if not self._contents.room.holds(self._promised + size, self._contents):
            return results
        self._promised += size
        return [self._kept(item, operands, results, place) for place in range(len(results))]

    def forget(self) -> None:
        """Keep nothing any more of what was made."""
        self._contents.forget()

    def _input(self, number: int) -> Callable[[int], int]:
        return lambda k: self._contents.of((number, k))

    def _moved(self, item: Node, operands: Sequence[FieldValue], place: int) -> Callable[[int], int]:
        def content(k: int) -> int:
            return self._contents.of((item.op, item.attributes, place, tuple(self._of[x](k) for x in operands)))

        return content

    def _kept(self, item: Node, operands: Sequence[FieldValue], made: Sequence[FieldValue], place: int) -> FieldValue:
        """The value that reads its components from here."""
        found: dict[int, tuple[Component, int]] = {}

        def find(k: int) -> tuple[Component, int]:
            if k not in found:
                found[k] = self._find(item, operands, made, place, k)
            return found[k]

        x = made[place]
        value = FieldValue(x.shape, x.levels, x.unfaithful, lambda k: ((), lambda: find(k)[0]))
        self._of[value] = lambda k: find(k)[1]
        return value

    def _find(
        self, item: Node, operands: Sequence[FieldValue], made: Sequence[FieldValue], place: int, k: int
    ) -> tuple[Component, int]:
        """Component k of one result, with the number of its content. All results are read at once where all will be: for p."""
        together, index = (made, place) if k == 0 else ([made[place]], 0)
        reads = [
            (operands.index(x), below, self._of[x](below))
            for x, below in self._algebra.needs(together, k)
            if x in operands and below < x.levels
        ]
        key = item.op, item.attributes, tuple(x.levels for x in operands), k, place if k else None, tuple(reads)
        if key not in self._contents.results:
            read = [_settled(component) for component in self._algebra.read(together, k)]
            entries = [(entry, self._contents.of((_bits(entry.residues), _bits(entry.undefined)))) for entry in read]
            self._contents.keep(key, entries, sum(map(_nbytes, read)))
        results: list[tuple[Component, int]] = self._contents.results[key]
        return results[index]


_ELEMENT = np.dtype(np.float64).itemsize + np.dtype(bool).itemsize  # bytes: a residue, and a mark of what is undefined


def _nbytes(x: Component) -> int:
    arrays = [x.residues] if x.undefined is None else [x.residues, x.undefined]
    return sum(int(array.nbytes) for array in arrays)


def _settled(x: Component) -> Component:
    """x without a mask that marks nothing."""
    return x if x.undefined is None or bool(x.undefined.any()) else Component(x.residues)


__all__: list[Any] = ["MEMO_BYTES", "FieldMemo", "Memo", "MemoBudget", "NumericMemo"]
