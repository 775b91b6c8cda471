"""The algebra of abstract terms, for tests of the evaluator: indices forgotten, the arithmetic kept (Mirage, OSDI'25, §4).

A term is a nested tuple, `("Sum", 4, ("Mul", ("Var", "x"), ("Var", "y")))`: constructor, exact constants, then terms. The
constructors are those of the rule files: op names in CamelCase. Every term of one algebra is made once, so equal terms are
identical and comparing them is cheap, however much they share; rearrangements leave a term as it is, but concat and split,
which no law looks into.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.egraph.expression import constructor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.ops import OPS, Op
from mirage_eg.ir.shapes import Attributes, Shape

Term = tuple[Any, ...]
OPAQUE = ("concat", "slice")


@dataclass(frozen=True, slots=True)
class TermValue:
    """A term, and an array without memory behind it (all strides 0) that carries the shape."""

    term: Term
    stub: Array


@dataclass(frozen=True, slots=True)
class TermAlgebra:
    """Terms made by one algebra can be compared with `is`; those of two algebras with `==`, if they share little."""

    _made: dict[tuple[Any, ...], Term] = field(default_factory=dict)

    def make(self, head: str, *arguments: Any) -> Term:
        """The one term with these arguments (names, exact constants, terms of this algebra)."""
        key = (head, *((id(argument),) if isinstance(argument, tuple) else argument for argument in arguments))
        return self._made.setdefault(key, (head, *arguments))

    def input(self, name: str, shape: Shape) -> TermValue:
        """The variable `name`."""
        return TermValue(self.make("Var", name), _stub(shape))

    def shape(self, x: TermValue) -> Shape:
        """Extents of x."""
        return tuple(x.stub.shape)

    def elementwise(self, op: str, operands: Sequence[TermValue], attributes: Attributes) -> TermValue:
        """Constants stand before operands, in the order in which the op table lists them."""
        constants = [attributes[name] for name in OPS[op].attributes]
        term = self.make(constructor(op), *constants, *(operand.term for operand in operands))
        return TermValue(term, _stub(np.broadcast_shapes(*(self.shape(operand) for operand in operands))))

    def reduce(self, kind: str, x: TermValue, axes: tuple[int, ...]) -> TermValue:
        """Sum, Mean or Max over the product of the extents."""
        shape, rank = self.shape(x), x.stub.ndim
        term = self.make(constructor(kind), prod(shape[axis] for axis in axes), x.term)
        return TermValue(term, _stub(tuple(1 if i - rank in axes else extent for i, extent in enumerate(shape))))

    def matmul(self, x: TermValue, y: TermValue) -> TermValue:
        """Sum(K, Mul(x, y))."""
        shape = (*np.broadcast_shapes(x.stub.shape[:-2], y.stub.shape[:-2]), x.stub.shape[-2], y.stub.shape[-1])
        return TermValue(self.make("Sum", x.stub.shape[-1], self.make("Mul", x.term, y.term)), _stub(shape))

    def rearrange(self, row: Op, operands: Sequence[TermValue], lead: int, attributes: Attributes) -> TermValue:
        """The operand's term; an opaque one for concat and split."""
        leading = np.broadcast_shapes(*(self.shape(operand)[:lead] for operand in operands))
        stub = _stub((*leading, *row.shape([self.shape(operand)[lead:] for operand in operands], attributes)))
        if row.name not in OPAQUE:
            return TermValue(operands[0].term, stub)
        constants = [attributes[name] for name in row.attributes if name in attributes]  # others are optional
        return TermValue(self.make(constructor(row.name), *constants, *(operand.term for operand in operands)), stub)

    def library(self, row: Op, operands: Sequence[TermValue], lead: int, attributes: Attributes) -> TermValue:
        """An opaque term."""
        leading = np.broadcast_shapes(*(self.shape(operand)[:lead] for operand in operands))
        stub = _stub((*leading, *row.shape([self.shape(operand)[lead:] for operand in operands], attributes)))
        constants = [attributes.get(name) for name in row.attributes]
        return TermValue(self.make(constructor(row.name), *constants, *(operand.term for operand in operands)), stub)

    def view(self, x: TermValue, shape: Shape, move: Callable[[Array], Array]) -> TermValue:
        """The same term under another shape."""
        return TermValue(x.term, _stub(shape))

    def join(self, pieces: Sequence[TermValue], axis: int) -> TermValue:
        """Slices of one value have one term."""
        extents = list(self.shape(pieces[0]))
        extents[axis] = sum(piece.stub.shape[axis] for piece in pieces)
        return TermValue(pieces[0].term, _stub(tuple(extents)))

    def cast(self, x: TermValue, dtype: DType) -> TermValue:
        """Terms do not round."""
        return x


_ZERO = np.zeros(())


def _stub(shape: Shape) -> Array:
    return np.broadcast_to(_ZERO, shape)
