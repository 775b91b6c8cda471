"""The algebra of the finite field: random testing that tells different programs apart. Part of the trusted core.

A value is a triple of residues modulo the prime chain of `modular`; exp reads one component down: x ↦ ω^(x_q) mod p,
where ω has order q, so ω^(a+b) = ω^a ω^b exactly, and two exponentials on a path are exact. Values are lazy: `read` finds out
which components the outputs need, computes those and no others, and drops each behind its last reader. A component that does
not exist (r of an exp) is a keyed random function of the one above it, and `FieldValue.unfaithful` says so.
(Random testing of tensor programs over finite fields is Mirage's, OSDI'25; the third prime and the laziness are ours.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.elementwise_kernels import LONGEST_REDUCTION
from mirage_eg.backends.evaluator.field_semantics import (
    ELEMENTWISE,
    Component,
    Draw,
    affine,
    either,
    exists,
    rational,
    scaled_exp,
)
from mirage_eg.backends.evaluator.modular import PRIMES
from mirage_eg.backends.evaluator.random_fill import fill, uniform_residues
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.ops import Attributes, Op
from mirage_eg.ir.shapes import Shape, broadcast

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FieldValue:
    """A lazy triple: `plan(k)` gives the components that component k reads, and the function from them to it."""

    shape: Shape
    levels: int  # components that exist; always at least one
    unfaithful: frozenset[str]  # ops behind this value that obey other laws here than for numbers
    plan: "Callable[[int], Computation]"
    factors: "tuple[FieldValue, FieldValue] | None" = None  # of a matrix product
    squared: "FieldValue | None" = None  # what this is the square of
    scaled: "tuple[FieldValue, Fraction] | None" = None  # what this is so many times


ComponentKey = tuple[FieldValue, int]
Memory = Callable[[int, int], Array]
Computation = tuple[Sequence[ComponentKey], Callable[..., Component]]


def _new(number: int, elements: int) -> Array:
    return np.empty(elements, np.float32)


@dataclass(frozen=True, slots=True)
class FieldAlgebra:
    """The field of one draw: same seed, draw and names give the same residues. Stacked draws are a first dim of all values."""

    draw: Draw

    @classmethod
    def of(cls, seed: int = 0, draw: int | tuple[int, ...] = 0, xp: Any = np) -> "FieldAlgebra":
        """The algebra of a seed and the number of a draw, or of draws that are stacked, on arrays of `xp`."""
        return cls(Draw(seed, draw, xp))

    @property
    def stack(self) -> int:
        """The number of dims that stand before those of a tensor."""
        return 0 if isinstance(self.draw.draw, int) else 1

    def input(self, place: int, shape: Shape, memory: Memory = _new) -> FieldValue:
        """Independent uniform residues for input `place`, drawn when first read and kept with the value.

        They stand in `memory(number of components drawn before, elements)`.
        """
        kept: dict[int, Array] = {}
        if self.stack:
            shape = (len(self.draw.numbers), *shape)

        def drawn(k: int) -> Component:
            if k not in kept:
                kept[k] = self._uniform(place, k, shape, memory(len(kept), prod(shape)))
            return Component(kept[k])

        return FieldValue(shape, len(PRIMES), NOTHING, lambda k: ((), lambda: drawn(k)))

    def given(self, components: Sequence[Component]) -> FieldValue:
        """A value of known components, for tests and tools."""
        shape = tuple(components[0].residues.shape)
        return FieldValue(shape, len(components), NOTHING, lambda k: ((), lambda: components[k]))

    def kept(self, x: FieldValue) -> FieldValue:
        """x with its components kept once they have been read, for values that many graphs read."""
        kept: dict[int, Component] = {}

        def once(k: int) -> Component:
            if k not in kept:
                [kept[k]] = self.read([x], k)
            return kept[k]

        return FieldValue(x.shape, x.levels, x.unfaithful, lambda k: ((), lambda: once(k)))

    def _uniform(self, place: int, k: int, shape: Shape, numbers: Array) -> Array:
        """Float32: half the memory, exact below 2^24, made wide by whatever computes with them; if stacked on a GPU, here."""
        keys = self.draw.keys("input", place, k)
        for key, part in zip(keys, numbers.reshape(len(keys), -1), strict=True):
            fill(part, [key], uniform_residues(PRIMES[k]))
        residues = self.draw.xp.asarray(numbers.reshape(shape))
        return residues.astype(np.float64) if self.stack and self.draw.xp is not np else residues

    def shape(self, x: FieldValue) -> Shape:
        """Extents of x."""
        return x.shape

    def elementwise(self, op: str, operands: Sequence[FieldValue], attributes: Attributes) -> FieldValue:
        """By the table of `backends.evaluator.field_semantics`."""
        scaled = operands[0].scaled if op == "exp" else None
        meaning, draw = ELEMENTWISE[op], self.draw
        # A result has the components for which everything that it reads exists.
        levels = min(operands[i].levels - below for i, below in meaning.reads)
        unfaithful = NOTHING.union(*(operand.unfaithful for operand in operands))
        if meaning.unfaithful(attributes):
            unfaithful |= {op}
        if levels < 1:
            unfaithful |= {f"{op} beyond the prime chain"}

        def plan(k: int) -> Computation:
            if scaled and k + 1 < scaled[0].levels:  # exp(c · x) in one pass
                inner, factor = scaled
                return [(inner, k + 1)], lambda exponent: scaled_exp(draw, k, factor, exponent)
            reads = [(operands[i], k + below) for i, below in meaning.reads]
            if draw.xp is not np:  # a kernel of `passes` widens as it reads
                return reads, lambda *components: meaning.compute(draw, k, attributes, components)
            return reads, lambda *components: meaning.compute(draw, k, attributes, [_wide(x) for x in components])

        return FieldValue(
            _broadcast(operands),
            max(1, levels),
            unfaithful,
            plan,
            squared=operands[0] if op == "square" else None,
            scaled=(operands[0], attributes["factor"]) if op == "scale" and exists(attributes["factor"]) else None,
        )

    def reduce(self, kind: str, x: FieldValue, axes: tuple[int, ...]) -> FieldValue:
        """Sums and means are exact; the maximum is the largest under a keyed random total order of each component."""
        rank = len(x.shape)
        kept = tuple(1 if place - rank in axes else extent for place, extent in enumerate(x.shape))
        count = prod(x.shape[axis] for axis in axes)
        linear = kind in ("sum", "mean") and len(axes) == 1 and axes[0] < -2 and count > 1
        if x.factors and linear and all(factor.shape[axes[0]] == count for factor in x.factors):
            total = self._contracted(x.factors, axes[0], kept)
            return total if kind == "sum" else self.elementwise("scale", [total], {"factor": Fraction(1, count)})

        source = x.squared if x.squared and kind != "max" else None

        def plan(k: int) -> Computation:
            if source:  # Σ x² in one pass
                return [(source, k)], lambda component: self._reduced(kind, component, axes, count, k, squares=True)
            return [(x, k)], lambda component: self._reduced(kind, component, axes, count, k)

        return FieldValue(kept, x.levels, x.unfaithful | {kind} if kind == "max" else x.unfaithful, plan)

    def _contracted(self, factors: "tuple[FieldValue, FieldValue]", axis: int, kept: Shape) -> FieldValue:
        """Σ_f Σ_k x[f, m, k] · y[f, k, n] as one product over (f, k): a loop's sum of products, without the products."""

        def rows(array: Array) -> Array:  # […, f, …, m, k] as […, m, (f, k)]
            moved = np.moveaxis(array, axis, -2)
            return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])

        def columns(array: Array) -> Array:  # […, f, …, k, n] as […, (f, k), n]
            moved = np.moveaxis(array, axis, -3)
            return moved.reshape(*moved.shape[:-3], moved.shape[-3] * moved.shape[-2], moved.shape[-1])

        def shape(x: FieldValue, f: int) -> Shape:
            extents = list(x.shape)
            extents[f] *= extents.pop(axis)
            return tuple(extents)

        x, y = factors
        product = self.matmul(self.view(x, shape(x, -1), rows), self.view(y, shape(y, -2), columns))
        return self.view(product, kept, lambda array: array.reshape(kept))

    def _reduced(self, kind: str, x: Component, axes: tuple[int, ...], count: int, k: int, squares: bool = False) -> Component:
        modulus = self.draw.modulus(k)
        undefined = None if x.undefined is None else x.undefined.any(axis=axes, keepdims=True)
        if self.draw.xp is np:  # a kernel of `passes` widens as it reads
            x = _wide(x)
        total = modulus.total_of_squares if squares else modulus.total
        if count > LONGEST_REDUCTION:
            x = self._settled(x, k)
        match kind:
            case "sum":
                return Component(total(x.residues, axes), undefined)
            case "mean":
                factor = rational(Fraction(1, count), modulus.prime)
                if factor is None:  # undefined
                    return affine(modulus, Component(total(x.residues, axes), undefined), Fraction(1, count), Fraction(0))
                return Component(total(x.residues, axes, factor), undefined)
            case "max":
                x = _wide(self._settled(x, k))
                rank = x.residues.ndim
                ranks = modulus.shuffled(x.residues, *self.draw.order(k, rank))
                if self.draw.joins:  # ranks are logarithms: their sum is that of a product
                    ranks = ranks.sum(axis=axes, keepdims=True) % (modulus.prime - 1)
                else:
                    ranks = ranks.max(axis=axes, keepdims=True)
                return Component(modulus.unshuffled(ranks, *self.draw.inverse_order(k, rank)), undefined)
            case _:
                raise AssertionError(f"no meaning for the reduction {kind}")

    def matmul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        """Exact; an element is undefined where anything in its row or column is."""
        shape = (*broadcast((x.shape[:-2], y.shape[:-2]), {}), x.shape[-2], y.shape[-1])

        def compute(left: Component, right: Component, k: int) -> Component:
            left, right = self._settled(left, k), self._settled(right, k)
            residues, pending = self.draw.modulus(k).product(left.residues, right.residues)
            rows = None if left.undefined is None else left.undefined.any(axis=-1, keepdims=True)
            columns = None if right.undefined is None else right.undefined.any(axis=-2, keepdims=True)
            undefined = either(rows, columns)
            return Component(residues, None if undefined is None else np.broadcast_to(undefined, shape), pending)

        return FieldValue(
            shape,
            min(x.levels, y.levels),
            x.unfaithful | y.unfaithful,
            lambda k: ([(x, k), (y, k)], lambda left, right: compute(left, right, k)),
            (x, y),
        )

    def rearrange(self, row: Op, operands: Sequence[FieldValue], lead: int, attributes: Attributes) -> FieldValue:
        """The op's own rule on the residues, and on the masks."""
        tile = row.shape([operand.shape[lead:] for operand in operands], attributes)
        shape = (*broadcast([operand.shape[:lead] for operand in operands], {}), *tile)
        rule = row.rearrange
        assert rule is not None
        return self._moved(operands, shape, lambda arrays: rule(self.draw.xp, arrays, lead, attributes))

    def view(self, x: FieldValue, shape: Shape, move: Callable[[Array], Array]) -> FieldValue:
        """`move` on the residues, and on the mask."""
        return self._moved([x], shape, lambda arrays: move(arrays[0]))

    def join(self, pieces: Sequence[FieldValue], axis: int) -> FieldValue:
        """Concatenation."""
        extent = sum(piece.shape[axis] for piece in pieces)
        shape = (*pieces[0].shape[:axis], extent, *pieces[0].shape[axis + 1 :])
        return self._moved(pieces, shape, lambda arrays: self.draw.xp.concatenate(arrays, axis=axis))

    def cast(self, x: FieldValue, dtype: DType) -> FieldValue:
        """The field does not round."""
        return x

    def _moved(self, operands: Sequence[FieldValue], shape: Shape, move: Callable[[list[Array]], Array]) -> FieldValue:
        def compute(*components: Component) -> Component:
            residues = move([component.residues for component in components])
            if all(component.undefined is None for component in components):
                return Component(residues, pending=any(component.pending for component in components))
            masks = [_mask(component) for component in components]
            return Component(residues, move(masks))

        return FieldValue(
            shape,
            min(operand.levels for operand in operands),
            NOTHING.union(*(operand.unfaithful for operand in operands)),
            lambda k: ([(operand, k) for operand in operands], compute),
        )

    def read(self, values: Sequence[FieldValue], k: int = 0) -> list[Component]:
        """Component k (p, unless said otherwise) of each value; computes what they need, each once, in topological order."""
        order, plans, readers = _demand(self._plan, [(value, k) for value in values])
        results: dict[ComponentKey, Component] = {}
        for wanted in order:
            reads, compute = plans[wanted]
            results[wanted] = compute(*(results[read] for read in reads))
            for read in reads:
                readers[read] -= 1
                if not readers[read]:
                    del results[read]
        return [_wide(self._settled(results[value, k], k)) for value in values]

    def _settled(self, x: Component, k: int) -> Component:
        """x, reduced if it is still to be."""
        return Component(self.draw.modulus(k).reduced(x.residues), x.undefined) if x.pending else x

    def needs(self, values: Sequence[FieldValue], k: int) -> list[ComponentKey]:
        """All that is read to compute component k of each value."""
        return _demand(self._plan, [(value, k) for value in values])[0]

    def _plan(self, wanted: ComponentKey) -> Computation:
        value, k = wanted
        if k < value.levels:
            return value.plan(k)
        # The component does not exist: a keyed random function of the one above it.
        return [(value, k - 1)], lambda x: Component(self.draw.keyed(_wide(x).residues, k, "missing", of=k - 1), x.undefined)


def _demand(
    plan: Callable[[ComponentKey], Computation], roots: Sequence[ComponentKey]
) -> tuple[list[ComponentKey], dict[ComponentKey, Computation], dict[ComponentKey, int]]:
    """All that the roots need, operands first, with its plans and the number of its readers. No recursion: graphs are deep."""
    order: list[ComponentKey] = []
    plans: dict[ComponentKey, Computation] = {}
    readers: dict[ComponentKey, int] = dict.fromkeys(roots, 1)  # a root is never dropped
    stack: list[tuple[ComponentKey, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        wanted, visited = stack.pop()
        if visited:
            order.append(wanted)
        elif wanted not in plans:
            plans[wanted] = plan(wanted)
            stack.append((wanted, True))
            for read in plans[wanted][0]:
                readers[read] = readers.get(read, 0) + 1
                stack.append((read, False))
    return order, plans, readers


def _broadcast(operands: Sequence[FieldValue]) -> Shape:
    first = operands[0].shape
    return first if all(operand.shape == first for operand in operands) else broadcast([x.shape for x in operands], {})


def _wide(component: Component) -> Component:
    """In float64, for computing; drawn inputs and views of them stand in float32."""
    return Component(component.residues.astype(np.float64, copy=False), component.undefined, component.pending)


def _mask(component: Component) -> Array:
    return np.zeros_like(component.residues, dtype=bool) if component.undefined is None else component.undefined
