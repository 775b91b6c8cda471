"""How far rounding moves the results of a graph: Monte Carlo arithmetic (Parker, 1997). Part of the trusted core.

A graph is evaluated a few times. Each time the result of every op and every term of a sum moves by a random fraction of a
roundoff. The spread of the outputs shows cancellation and errors that grow from op to op, whichever the ops are. Where a sample
is not finite, rounding alone takes an operand out of the domain of an op.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2, prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Algebra, Array, ArrayMoves, Numbers
from mirage_eg.backends.evaluator.evaluate import SLICE_ELEMENTS, evaluate
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import PACKAGED
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes

SAMPLES = 4
POLES = frozenset(op.name for op in PACKAGED.values() if op.pole)
_TINY = float(np.finfo(np.float64).tiny)  # below it numbers are equally spaced


@dataclass(frozen=True, slots=True)
class RandomRounding(ArrayMoves):
    """The numbers of `plain`, each moved by a uniform random number of standard deviation `roundoff` times its size."""

    plain: Numbers
    roundoff: float
    generator: Any  # of NumPy or CuPy
    overflows: list[str] = field(default_factory=list)  # ops that overflowed: infinite of finite operands, and no pole

    @property
    def xp(self) -> Any:
        return self.plain.xp

    @property
    def working(self) -> DType:
        return self.plain.working

    def _moved(self, x: Array, roundings: float = 1.0) -> Array:
        xp, steps = self.plain.xp, self.generator.random(x.shape, dtype=np.float32)
        steps -= np.float32(0.5)
        steps *= np.sqrt(12 * roundings) * self.roundoff
        size = x
        if bool((is_tiny := abs(x) < _TINY).any()):
            size = xp.where(is_tiny & (x != 0), _TINY, x)
        moved = size * steps
        moved += x
        if not bool((finite := xp.isfinite(x)).all()):
            moved = xp.where(finite, moved, np.nan)  # after a pole or an overflow the size is unknown: 1/∞ is not 0
        return moved

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Attributes) -> Array:
        """The result moves."""
        with np.errstate(all="ignore"):
            result = self.plain.elementwise(op, operands, attributes)
            if op not in POLES and bool((self.plain.xp.isinf(result) & self.plain.xp.isfinite(sum(operands))).any()):
                self.overflows.append(op)
            return self._moved(result)

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...]) -> Array:
        """The terms of a sum move by as many roundings as pairwise summation has; a maximum is exact."""
        if kind == "max":
            return self.plain.reduce(kind, x, axes)
        with np.errstate(all="ignore"):
            return self.plain.reduce(kind, self._moved(x, log2(2 * prod(x.shape[axis] for axis in axes))), axes)

    def matmul(self, x: Array, y: Array) -> Array:
        """One operand moves as the terms of a sum do, then the result."""
        with np.errstate(all="ignore"):
            return self._moved(self.plain.matmul(self._moved(x, log2(2 * x.shape[-1])), y))

    def library(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """The terms of sums move as in `reduce`; what moves elements or orders them is exact."""
        op = LIBRARY.get(row.name)
        if op is None or op.terms is None:
            return self.plain.library(row, operands, lead, attributes)
        terms = op.terms([x.shape[lead:] for x in operands], attributes)
        with np.errstate(all="ignore"):
            moved = [self._moved(operands[0], log2(2 * terms)), *operands[1:]]
            return self._moved(self.plain.library(row, moved, lead, attributes))

    def cast(self, x: Array, dtype: DType) -> Array:
        return self.plain.cast(x, dtype)


def rounding_spread(
    graph: Graph,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    roundoff: float,
    plain: Numbers | ShiftedFloats,
    slice_elements: int = SLICE_ELEMENTS,
    stack: int = 0,
    samples: int = SAMPLES,
) -> tuple[list[Array], bool]:
    """For each element of `outputs`, those of `graph` in float64, how far samples lie from it; NaN where one is not finite.

    Also whether an op overflows float64. `stack` is that of `evaluate`.
    """
    shifts = isinstance(plain, ShiftedFloats)
    numbers = plain.plain if isinstance(plain, ShiftedFloats) else plain
    xp = numbers.xp
    spreads, overflows = [xp.zeros_like(output) for output in outputs], list[str]()
    for seed in range(samples):
        rounding = RandomRounding(numbers, roundoff, xp.random.default_rng(seed), overflows)
        shifted = ShiftedFloats(rounding)
        algebra: Algebra[Any] = shifted if shifts else rounding
        sample = [shifted.number(x) for x in evaluate(graph, inputs, algebra, slice_elements, stack=stack)]
        with np.errstate(all="ignore"):
            moved = [abs(x - output) for x, output in zip(sample, outputs, strict=True)]
        spreads = [xp.maximum(one, xp.where(xp.isfinite(x), x, np.nan)) for one, x in zip(spreads, moved, strict=True)]
    return spreads, bool(overflows)
