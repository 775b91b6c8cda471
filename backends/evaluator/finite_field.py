"""The algebra of the finite field: random tests that distinguish different programs. Trusted.

A value is a triple of residues modulo the primes of `modular_arithmetic`; exp reads the next component: x ↦ ω^(x_q) mod p,
where ω has order q, so ω^(a+b) = ω^a ω^b exactly, and two exponentials on a path are exact. Values are lazy: `read` determines
the components that the outputs need, computes only those, and drops each after its last reader. A component that does
not exist (r of an exp) is a keyed random function of the previous one, and `FieldValue.unfaithful` has the op.
(Random testing of tensor programs over finite fields is Mirage's, OSDI'25; the third prime and the laziness are ours.)
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator import library_semantics
from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.elementwise_kernels import LONGEST_REDUCTION
from mirage_eg.backends.evaluator.field_semantics import (
    ELEMENTWISE,
    Component,
    Randomness,
    affine,
    either,
    exists,
    mask_of,
    rational,
    scaled_exp,
)
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.backends.evaluator.random_fill import fill, uniform_residues
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.elementwise import SQUARES
from mirage_eg.ir.ops import Op
from mirage_eg.ir.reached import operands_first
from mirage_eg.ir.shapes import Attributes, Shape, broadcast

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FieldValue:
    """A lazy triple: `computation(k)` is the list of components that component k reads, and the function of them."""

    shape: Shape
    levels: int  # components that exist; always at least one
    unfaithful: frozenset[str]  # ancestors that satisfy other laws here than on numbers
    computation: "Callable[[int], Computation]"
    factors: "tuple[FieldValue, FieldValue] | None" = None  # of a matrix product
    squared: "FieldValue | None" = None  # x, if this is x²
    scaled: "tuple[FieldValue, Fraction] | None" = None  # (x, c), if this is c · x


ComponentKey = tuple[FieldValue, int]
Memory = Callable[[int, int], Array]
Computation = tuple[Sequence[ComponentKey], Callable[..., Component]]


def _new(number: int, elements: int) -> Array:
    return np.empty(elements, np.float32)


@dataclass(frozen=True, slots=True)
class FieldAlgebra:
    """The field of one trial: equal seed, trial and names give equal residues. Stacked trials are a first dim of all values."""

    random: Randomness

    @classmethod
    def of(cls, seed: int = 0, trial: int | tuple[int, ...] = 0, xp: Any = np) -> "FieldAlgebra":
        """The algebra of a seed and a trial, or of stacked trials, on arrays of `xp`."""
        return cls(Randomness(seed, trial, xp))

    @property
    def stack(self) -> int:
        """The number of dims before those of a tensor."""
        return 0 if isinstance(self.random.trial, int) else 1

    def input(self, position: int, shape: Shape, memory: Memory = _new, below: int = 0) -> FieldValue:
        """Independent uniform residues for input `position`, generated at the first read and stored with the value.

        Their memory is `memory(number of components generated before, elements)`. With `below`, whole numbers below it, the
        same in every component; with `joins` an indicator (below 2) is any residue, so that it hides nothing. With
        `everywhere` they are the first and the last of them, and two are equal.
        """
        if below and not (below == 2 and self.random.joins):
            bits = self.input(position, shape, memory)
            first = FieldValue(
                bits.shape, 1, NOTHING, lambda k: ([(bits, 0)], lambda x: Component(self._whole(x.residues, below)))
            )
            once = self.stored(first)
            return FieldValue(
                bits.shape, len(PRIMES), frozenset({"indicator"} if below == 2 else ()), lambda k: ([(once, 0)], lambda x: x)
            )
        stored: dict[int, Array] = {}
        if self.stack:
            shape = (len(self.random.trials), *shape)

        def residues(k: int) -> Component:
            if k not in stored:
                stored[k] = self._uniform(position, k, shape, memory(len(stored), prod(shape)))
            return Component(stored[k])

        return FieldValue(shape, len(PRIMES), NOTHING, lambda k: ((), lambda: residues(k)))

    def _whole(self, residues: Array, below: int) -> Array:
        """Whole numbers below a bound; with `everywhere` 0 or the largest, and the first two are equal."""
        if not self.random.everywhere or below == 2:
            return residues % below
        ends = (residues % 2 * (below - 1)).reshape(len(self.random.trials), -1)
        ends[:, 1:2] = ends[:, :1]
        return ends.reshape(residues.shape)

    def given(self, components: Sequence[Component]) -> FieldValue:
        """A value with these components, for tests and tools."""
        shape = tuple(components[0].residues.shape)
        return FieldValue(shape, len(components), NOTHING, lambda k: ((), lambda: components[k]))

    def stored(self, x: FieldValue) -> FieldValue:
        """x with its components stored after the first read, for values that many graphs read."""
        stored: dict[int, Component] = {}

        def once(k: int) -> Component:
            if k not in stored:
                [stored[k]] = self.read([x], k)
            return stored[k]

        return FieldValue(x.shape, x.levels, x.unfaithful, lambda k: ((), lambda: once(k)))

    def _uniform(self, position: int, k: int, shape: Shape, numbers: Array) -> Array:
        """In float32: half the memory, exact below 2^24; consumers widen them. Stacked trials on a GPU are float64."""
        keys = self.random.keys("input", position, k)
        for key, part in zip(keys, numbers.reshape(len(keys), -1), strict=True):
            fill(part, [key], uniform_residues(PRIMES[k]))
        residues = self.random.xp.asarray(numbers.reshape(shape))
        return residues.astype(np.float64) if self.stack and self.random.xp is not np else residues

    def shape(self, x: FieldValue) -> Shape:
        return x.shape

    def elementwise(self, op: str, operands: Sequence[FieldValue], attributes: Attributes) -> FieldValue:
        """By the table of `backends.evaluator.field_semantics`; by its definition, if the op has one."""
        semantics, random = ELEMENTWISE[op], self.random
        if not semantics.reads:
            definition = definition_of(op, attributes)
            assert definition is not None
            return by_definition(definition, operands, lambda name, *x, **given: self.elementwise(name, x, given))
        scaled = operands[0].scaled if op == "exp" else None
        # Component k of the result exists if all components that it reads exist.
        levels = min(len(PRIMES) if below is None else operands[i].levels - below for i, below in semantics.reads)
        unfaithful = NOTHING.union(*(operand.unfaithful for operand in operands))
        if semantics.unfaithful(attributes):
            unfaithful |= {op}
        if levels < 1:
            unfaithful |= {f"{op} beyond the prime chain"}

        def computation(k: int) -> Computation:
            if scaled and k + 1 < scaled[0].levels:  # exp(c · x) in one pass
                inner, factor = scaled
                return [(inner, k + 1)], lambda exponent: scaled_exp(random, k, factor, exponent)
            reads = [(operands[i], 0 if below is None else k + below) for i, below in semantics.reads]
            if random.xp is not np:  # CuPy kernels widen their operands
                return reads, lambda *components: semantics.compute(random, k, attributes, components)
            return reads, lambda *components: semantics.compute(random, k, attributes, [_wide(x) for x in components])

        return FieldValue(
            _broadcast(operands),
            max(1, levels),
            unfaithful,
            computation,
            squared=operands[0] if op in SQUARES else None,
            scaled=(operands[0], attributes["factor"]) if op == "scale" and exists(attributes["factor"]) else None,
        )

    def reduce(self, kind: str, x: FieldValue, axes: tuple[int, ...]) -> FieldValue:
        """Sums and means are exact; the maximum is the largest under a keyed random total order of each component."""
        rank = len(x.shape)
        result_shape = tuple(1 if position - rank in axes else extent for position, extent in enumerate(x.shape))
        count = prod(x.shape[axis] for axis in axes)
        linear = kind in ("sum", "mean") and len(axes) == 1 and axes[0] < -2 and count > 1
        if x.factors and linear and all(factor.shape[axes[0]] == count for factor in x.factors):
            total = self._contracted(x.factors, axes[0], result_shape)
            return total if kind == "sum" else self.elementwise("scale", [total], {"factor": Fraction(1, count)})

        source = x.squared if x.squared and kind != "max" else None

        def computation(k: int) -> Computation:
            if source:  # Σ x² in one pass
                return [(source, k)], lambda component: self._reduced(kind, component, axes, count, k, squares=True)
            return [(x, k)], lambda component: self._reduced(kind, component, axes, count, k)

        return FieldValue(result_shape, x.levels, x.unfaithful | {kind} if kind == "max" else x.unfaithful, computation)

    def _contracted(self, factors: "tuple[FieldValue, FieldValue]", axis: int, result_shape: Shape) -> FieldValue:
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
        return self.view(product, result_shape, lambda array: array.reshape(result_shape))

    def _reduced(self, kind: str, x: Component, axes: tuple[int, ...], count: int, k: int, squares: bool = False) -> Component:
        modulus = self.random.modulus(k)
        undefined = None if x.undefined is None else x.undefined.any(axis=axes, keepdims=True)
        if self.random.xp is np:  # CuPy kernels widen their operands
            x = _wide(x)
        total = modulus.total_of_squares if squares else modulus.total
        if count > LONGEST_REDUCTION:
            x = self._reduced_if_pending(x, k)
        match kind:
            case "sum":
                return Component(total(x.residues, axes), undefined)
            case "mean":
                factor = rational(Fraction(1, count), modulus.prime)
                if factor is None:  # undefined
                    return affine(modulus, Component(total(x.residues, axes), undefined), Fraction(1, count), Fraction(0))
                return Component(total(x.residues, axes, factor), undefined)
            case "max":
                x = _wide(self._reduced_if_pending(x, k))
                rank = x.residues.ndim
                ranks = modulus.shuffled(x.residues, *self.random.order(k, rank))
                if self.random.joins:  # ranks are logarithms: their sum is that of a product
                    ranks = ranks.sum(axis=axes, keepdims=True) % (modulus.prime - 1)
                else:
                    ranks = ranks.max(axis=axes, keepdims=True)
                return Component(modulus.unshuffled(ranks, *self.random.inverse_order(k, rank)), undefined)
            case _:
                raise AssertionError(f"no meaning for the reduction {kind}")

    def matmul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        """Exact; an element is undefined if an element of its row or column is."""
        shape = (*broadcast((x.shape[:-2], y.shape[:-2]), {}), x.shape[-2], y.shape[-1])

        def compute(left: Component, right: Component, k: int) -> Component:
            left, right = self._reduced_if_pending(left, k), self._reduced_if_pending(right, k)
            residues, pending = self.random.modulus(k).product(left.residues, right.residues)
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
        return self._rearranged(operands, shape, lambda arrays: rule(self.random.xp, arrays, lead, attributes))

    def library(self, row: Op, operands: Sequence[FieldValue], lead: int, attributes: Attributes) -> FieldValue:
        """By `library_semantics`: moves and scans are exact, orders are keyed."""
        # Keyed functions of a constant differ from trial to trial, too.
        leading = broadcast([x.shape[:lead] for x in operands], {}) if operands else (len(self.random.trials),) * self.stack
        shape = (*leading, *row.shape([x.shape[lead:] for x in operands], attributes))
        own = [x for x, k in zip(operands, library_semantics.read_components(row, len(operands), 1), strict=True) if k]
        unfaithful = NOTHING.union(*(x.unfaithful for x in operands))

        def computation(k: int) -> Computation:
            reads = library_semantics.read_components(row, len(operands), k)
            return [*zip(operands, reads, strict=True)], lambda *components: compute(k, components)

        def compute(k: int, components: Sequence[Component]) -> Component:
            reads = library_semantics.read_components(row, len(operands), k)
            known = [_wide(self._reduced_if_pending(x, read)) for x, read in zip(components, reads, strict=True)]
            return library_semantics.component(self.random, row, k, known, lead, attributes)

        levels = min((x.levels for x in own), default=len(PRIMES))
        return FieldValue(
            shape, levels, unfaithful | {row.name} if library_semantics.is_keyed(row) else unfaithful, computation
        )

    def view(self, x: FieldValue, shape: Shape, move: Callable[[Array], Array]) -> FieldValue:
        """`move` on the residues, and on the mask."""
        return self._rearranged([x], shape, lambda arrays: move(arrays[0]))

    def join(self, pieces: Sequence[FieldValue], axis: int) -> FieldValue:
        extent = sum(piece.shape[axis] for piece in pieces)
        shape = (*pieces[0].shape[:axis], extent, *pieces[0].shape[axis + 1 :])
        return self._rearranged(pieces, shape, lambda arrays: self.random.xp.concatenate(arrays, axis=axis))

    def cast(self, x: FieldValue, dtype: DType) -> FieldValue:
        """The field does not round."""
        return x

    def _rearranged(self, operands: Sequence[FieldValue], shape: Shape, move: Callable[[list[Array]], Array]) -> FieldValue:
        def compute(*components: Component) -> Component:
            residues = move([component.residues for component in components])
            if all(component.undefined is None for component in components):
                return Component(residues, pending=any(component.pending for component in components))
            return Component(residues, move([*map(mask_of, components)]))

        return FieldValue(
            shape,
            min(operand.levels for operand in operands),
            NOTHING.union(*(operand.unfaithful for operand in operands)),
            lambda k: ([(operand, k) for operand in operands], compute),
        )

    def read(self, values: Sequence[FieldValue], k: int = 0) -> list[Component]:
        """Component k (default p) of each value; computes all components that they need, each once, in topological order."""
        computations = self._demand(values, k)
        readers = Counter(read for reads, _ in computations.values() for read in reads)
        readers.update((value, k) for value in values)  # which are never dropped
        results: dict[ComponentKey, Component] = {}
        for key, (reads, compute) in computations.items():
            results[key] = compute(*(results[read] for read in reads))
            for read in reads:
                readers[read] -= 1
                if not readers[read]:
                    del results[read]
        return [_wide(self._reduced_if_pending(results[value, k], k)) for value in values]

    def _reduced_if_pending(self, x: Component, k: int) -> Component:
        """x after any pending reduction."""
        return Component(self.random.modulus(k).reduced(x.residues), x.undefined) if x.pending else x

    def needs(self, values: Sequence[FieldValue], k: int) -> list[ComponentKey]:
        """All components that component k of each value depends on."""
        return [*self._demand(values, k)]

    def _demand(self, values: Sequence[FieldValue], k: int) -> dict[ComponentKey, Computation]:
        """The computations of all components that component k of each value needs, operands first."""
        computations: dict[ComponentKey, Computation] = {}

        def reads(key: ComponentKey) -> Sequence[ComponentKey]:
            if key not in computations:
                computations[key] = self._computation(key)
            return computations[key][0]

        return {key: computations[key] for key in operands_first([(value, k) for value in values], reads)}

    def _computation(self, key: ComponentKey) -> Computation:
        value, k = key
        if k < value.levels:
            return value.computation(k)
        # The component does not exist: a keyed random function of the previous one.
        return [(value, k - 1)], lambda x: Component(self.random.keyed(_wide(x).residues, k, "missing", of=k - 1), x.undefined)


def _broadcast(operands: Sequence[FieldValue]) -> Shape:
    first = operands[0].shape
    return first if all(operand.shape == first for operand in operands) else broadcast([x.shape for x in operands], {})


def _wide(component: Component) -> Component:
    """In float64, for arithmetic; random inputs and their views are float32."""
    return Component(component.residues.astype(np.float64, copy=False), component.undefined, component.pending)
