"""The algebra of exact numbers: arrays of mpmath's, of so many digits that no cancellation matters. Part of the trusted core.

It is slow: some hundred thousand operations a second. So it serves where terms cancel in float64, which is found here, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import mpmath
import numpy as np

from mirage_eg.backends.evaluator import library_ops
from mirage_eg.backends.evaluator.algebra import Array, ArrayMoves
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.mpmath_ops import ELEMENTWISE
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import TERMS
from mirage_eg.ir.ops import Kind, Op
from mirage_eg.ir.shapes import Attributes

DIGITS = 400  # more than float64's whole range has
AMPLIFIED = 1 << 24  # by the constants of a graph together: what cancels to 24 bits counts again
CANCELLED = 2.0**-24  # of the terms
MOST_CANCELLED = 0.75  # of the elements


@dataclass(frozen=True, slots=True)
class ExactNumbers(ArrayMoves):
    """Arrays of mpmath's numbers; what is undefined is not-a-number."""

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Attributes) -> Array:
        """By the table of `mpmath_ops`."""

        def compute(*numbers: Any) -> Any:
            try:
                return ELEMENTWISE[op](*numbers, **attributes)
            except (ArithmeticError, ValueError):
                return mpmath.nan

        return np.asarray(np.frompyfunc(compute, len(operands), 1)(*operands), dtype=object)

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...]) -> Array:
        if kind == "max":
            return np.asarray(x.max(axis=axes, keepdims=True), dtype=object)
        total = np.asarray(x.sum(axis=axes, keepdims=True), dtype=object)
        return total if kind == "sum" else total / mpmath.mpf(prod(x.shape[axis] for axis in axes))

    def matmul(self, x: Array, y: Array) -> Array:
        return np.asarray((x[..., :, :, None] * y[..., None, :, :]).sum(axis=-2), dtype=object)

    def library(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """Moves. Raises UnsupportedError: another op."""
        if row.rearrange is None:
            raise UnsupportedError(f"{row.name} has no exact numbers")
        arrays = [x.astype(np.float64) if place == row.indices else x for place, x in enumerate(operands)]
        return library_ops.moved(np, row, arrays, lead, attributes)

    def cast(self, x: Array, dtype: DType) -> Array:
        return x


def exact_outputs(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs, computed with `DIGITS` digits and rounded to 40. Raises UnsupportedError: an op without exact numbers."""
    with mpmath.workdps(DIGITS):
        given = [np.asarray(np.frompyfunc(lambda x: mpmath.mpf(float(x)), 1, 1)(x), dtype=object) for x in inputs]
        return evaluate(graph, given, ExactNumbers())


@dataclass(frozen=True, slots=True)
class _Cancellation(FloatAlgebra):
    """float64, with the ops that cancel at most of their elements."""

    found: list[str] = field(default_factory=list)

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Attributes) -> Array:
        """Sums and differences are watched."""
        result = FloatAlgebra.elementwise(self, op, operands, attributes)
        if op in TERMS or op == "shift":
            terms = sum(abs(x) for x in operands) + abs(float(attributes.get("offset", 0)))
            self._watch(op, result, terms)
        return result

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...]) -> Array:
        """Sums and means are watched."""
        result = FloatAlgebra.reduce(self, kind, x, axes)
        if kind != "max":
            self._watch(kind, result, FloatAlgebra.reduce(self, kind, abs(x), axes))
        return result

    def _watch(self, op: str, result: Array, terms: Array) -> None:
        with np.errstate(all="ignore"):
            if float(((abs(result) <= CANCELLED * terms) & (terms > 0)).mean()) >= MOST_CANCELLED:
                self.found.append(op)


def cancels(graph: Graph, inputs: Sequence[Array], xp: Any, slice_elements: int) -> bool:
    """Whether terms of the graph cancel in float64."""
    watching = _Cancellation(xp)
    evaluate(graph, inputs, watching, slice_elements)
    return bool(watching.found)


def amplification(graph: Graph) -> float:
    """The product of all factors above 1 of a graph, and of the reciprocals of fills below 1."""
    result = 1.0
    for item in graph.nodes:
        if item.kind is Kind.GRAPH:
            result *= amplification(item["graph"])
        elif "factor" in item.mapping:
            result *= max(1.0, abs(float(item["factor"])))
        elif item.op in ("fill", "full") and item["value"]:
            result *= max(1.0, 1 / abs(float(item["value"])))
    return result


def work_of(graph: Graph) -> int:
    """The operations on numbers, of all blocks and iterations; a matrix product has one for each term."""
    work = 0
    for item, values in graph.numbered():
        if item.kind is Kind.GRAPH:
            inner = item["graph"]
            work += work_of(inner) * inner.loop * prod(inner.grid)
        else:
            terms = graph.types[item.operands[0]].shape[-1] if item.kind is Kind.MATMUL else 1
            work += sum(prod(graph.types[value].shape) for value in values) * terms
    return work
