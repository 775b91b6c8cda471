"""What kernels make, computed once for all µGraphs that make it of the same operands. Part of the trusted core.

µGraphs of one program share kernels, and a right kernel makes what the program has there: then all that follows has the same
operands too. Two operands are the same if they were given as one, or if their bits have the same SHA-256; so what is taken from
here is what computing it again would give. Only on NumPy: on a GPU, to compare bits is to wait for them.
"""

from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.field import FieldAlgebra, FieldValue
from mirage_eg.backends.meanings import Component
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Node
from mirage_eg.ir.ops import OPS, Kind

KEPT_ELEMENTS = 1 << 26  # of all that is kept; what is made then is made again wherever it is wanted

V = TypeVar("V")


class Known(Protocol[V]):
    """What `evaluate` asks about the nodes of a kernel graph."""

    def made(self, item: Node, dtype: DType, operands: Sequence[V], make: Callable[[Sequence[V]], list[V]]) -> list[V]:
        """What `make` makes of these operands, or would, for a node whose first result is held in `dtype`."""
        ...


class _Contents:
    """A number for each key, the same for equal ones, while there is room."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._room = KEPT_ELEMENTS

    def of(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def take_room(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether values of these shapes can be kept."""
        size = sum(map(prod, shapes))
        self._room -= size if size <= self._room else 0
        return size <= self._room


def _bits(x: Array | None) -> Hashable:
    return None if x is None else (x.shape, x.dtype.str, sha256(np.ascontiguousarray(x).data).digest())


class KnownNumbers:
    """What one algebra of numbers makes."""

    def __init__(self) -> None:
        self._contents = _Contents()
        self._of: dict[int, tuple[Array, int]] = {}  # by identity; the array is kept, so that nothing else takes its place
        self._results: dict[Hashable, list[Array]] = {}

    def made(
        self, item: Node, dtype: DType, operands: Sequence[Array], make: Callable[[Sequence[Array]], list[Array]]
    ) -> list[Array]:
        """As `Known` says; equal numbers may be operands of other types, after which results are rounded otherwise."""
        key = item.op, item.attributes, dtype, tuple(map(self._content, operands))
        if key in self._results:
            return self._results[key]
        results = make(operands)
        moved = OPS[item.op].kind is Kind.REARRANGEMENT
        if moved or self._contents.take_room([result.shape for result in results]):
            for place, result in enumerate(results):
                self._of[id(result)] = result, self._contents.of((key, place) if moved else _bits(result))
            self._results[key] = results
        return results

    def _content(self, x: Array) -> int:
        if id(x) not in self._of:
            self._of[id(x)] = x, self._contents.of(("given", id(x)))
        return self._of[id(x)][1]


class KnownResidues:
    """What is made in the field of one draw. Values are lazy here too: each component is looked up when it is read."""

    def __init__(self, algebra: FieldAlgebra) -> None:
        self._algebra = algebra
        self._contents = _Contents()
        self._of: dict[FieldValue, Callable[[int], int]] = {}
        self._results: dict[Hashable, list[tuple[Component, int]]] = {}

    def __contains__(self, value: FieldValue) -> bool:
        """Whether a value's components are kept here."""
        return value in self._of

    def made(
        self, item: Node, dtype: DType, operands: Sequence[FieldValue], make: Callable[[Sequence[FieldValue]], list[FieldValue]]
    ) -> list[FieldValue]:
        """As `Known` says; a field knows no types."""
        results = make(operands)
        if OPS[item.op].kind is Kind.REARRANGEMENT:
            for place, result in enumerate(results):
                if result not in self._of:
                    self._of[result] = self._moved(item, operands, place)
            return results
        if not self._contents.take_room([result.shape for result in results]):
            return results
        return [self._kept(item, operands, results, place) for place in range(len(results))]

    def _content(self, x: FieldValue, k: int) -> int:
        return self._of[x](k) if x in self._of else self._contents.of(("given", x, k))

    def _moved(self, item: Node, operands: Sequence[FieldValue], place: int) -> Callable[[int], int]:
        def content(k: int) -> int:
            return self._contents.of((item.op, item.attributes, place, tuple(self._content(x, k) for x in operands)))

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
            (operands.index(x), below, self._content(x, below))
            for x, below in self._algebra.needs(together, k)
            if x in operands and below < x.levels
        ]
        key = item.op, item.attributes, tuple(x.levels for x in operands), k, place if k else None, tuple(reads)
        if key not in self._results:
            read = [_settled(component) for component in self._algebra.read(together, k)]
            self._results[key] = [(entry, self._contents.of((_bits(entry.residues), _bits(entry.undefined)))) for entry in read]
        return self._results[key][index]


def _settled(x: Component) -> Component:
    """x without a mask that marks nothing."""
    return x if x.undefined is None or bool(x.undefined.any()) else Component(x.residues)


__all__: list[Any] = ["Known", "KnownNumbers", "KnownResidues"]
