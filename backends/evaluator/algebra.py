"""Algebras, in which graphs are evaluated: the type of a value, and each kind of op on such values.

One evaluator (`evaluate`) and several algebras: numbers (`floating_point`), the finite field (`finite_field`), degrees of
polynomials (`polynomial_degree`). A value stands for a whole array; in a block graph for the tiles of all blocks and iterations
at once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes, Shape

V = TypeVar("V")
Array = Any  # of NumPy or CuPy


class Algebra(Protocol[V]):
    """The operations of the evaluator. Axes are counted from the end, so that leading dims do not matter."""

    def shape(self, x: V) -> Shape:
        """Extents of the array that x stands for."""
        ...

    def elementwise(self, op: str, operands: Sequence[V], attributes: Attributes) -> V:
        """An elementwise op of the op table; operands have one rank and broadcast as NumPy's do."""
        ...

    def reduce(self, kind: str, x: V, axes: tuple[int, ...]) -> V:
        """`sum`, `mean` or `max` over `axes` (negative), which stay with extent 1."""
        ...

    def matmul(self, x: V, y: V) -> V:
        """[…, m, k] @ […, k, n]; operands have one rank and leading dims broadcast."""
        ...

    def rearrange(self, row: Op, operands: Sequence[V], lead: int, attributes: Attributes) -> V:
        """A rearrangement of the op table, by `row.rearrange`; it does not touch the first `lead` dims."""
        ...

    def library(self, row: Op, operands: Sequence[V], lead: int, attributes: Attributes) -> V:
        """A library op of the op table; the first `lead` dims are not its business. Indices are operand `row.indices`."""
        ...

    def view(self, x: V, shape: Shape, move: Callable[[Array], Array]) -> V:
        """`move` applied to the elements of x, with result shape `shape`: tiles are loaded, stored and aligned so."""
        ...

    def join(self, pieces: Sequence[V], axis: int) -> V:
        """The concatenation of the slices of one value along `axis` (counted from the front)."""
        ...

    def cast(self, x: V, dtype: DType) -> V:
        """x rounded to `dtype`, as in memory or in a matrix unit; x itself in algebras without rounding."""
        ...


class Numbers(Algebra[Array], Protocol):
    """Arithmetic on arrays of floats."""

    @property
    def xp(self) -> Any:
        """NumPy or CuPy."""
        ...

    @property
    def working(self) -> DType:
        """The type of arithmetic."""
        ...


class ArrayMoves:
    """The moves of arrays, which all algebras of numbers share."""

    __slots__ = ()

    @property
    def xp(self) -> Any:
        """NumPy; an algebra of CuPy's arrays has CuPy."""
        return np

    def shape(self, x: Array) -> Shape:
        """Extents of x."""
        return tuple(x.shape)

    def rearrange(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """The op's own rule."""
        assert row.rearrange is not None
        return row.rearrange(self.xp, operands, lead, attributes)

    def view(self, x: Array, shape: Shape, move: Callable[[Array], Array]) -> Array:
        """`move` itself."""
        return move(x)

    def join(self, pieces: Sequence[Array], axis: int) -> Array:
        """Concatenation."""
        return self.xp.concatenate(pieces, axis=axis)
