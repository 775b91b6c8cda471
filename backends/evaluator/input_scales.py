"""The magnitudes of random inputs with which a program stays within the range of its types.

Inputs have variance 1. If a matrix product of an input would have a larger variance, the input is scaled by a power of two, as
weights are initialised in practice (layer-sequential unit variance, Mishkin and Matas, 2016): otherwise each product over K
elements is √K times as large as its operands, and deep programs overflow in half precision. Variances are estimated from a
sample of each value's elements, which are assumed to be independent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import log, log2, prod, sqrt
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import ELEMENTWISE, FloatAlgebra
from mirage_eg.backends.evaluator.library_ops import computed
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes, Shape, broadcast
from mirage_eg.ir.whole_inputs import root_inputs, whole_inputs

SAMPLES = 4096
_MARGIN = 4  # a tensor has more elements than a sample, and larger ones
_WHOLE = 1 << 62  # samples are small: nothing is evaluated in slices
_MOST_ROUNDS = 1000
_MOST_HALVINGS = 12
_LARGE = (8.0, 4.0, 2.0)


@lru_cache(maxsize=8)  # of the process: each emitted candidate of a program has its scales
def input_scales(program: Graph) -> tuple[float, ...]:
    """A power of two, at most 1, for each input: random inputs have variance 1, times this factor.

    Cached, as each emitted file of a program contains the result (7 ms for rmsnorm, 60 ms for a decoder layer).
    """
    kept = whole_inputs(program).keys() | root_inputs(expand(program))
    scales = _fit_products(program, [1.0] * len(program.input_types))
    halved = scales
    for _ in range(_MOST_HALVINGS):  # an exp of a value that is not a product of an input, say
        if _run(program, halved).fits:
            return tuple(1.0 if place in kept else scale for place, scale in enumerate(halved))
        halved = [scale / 2 for scale in halved]
    return tuple(scales)  # the overflow does not depend on the size of the inputs


@lru_cache(maxsize=8)
def large_magnitude(program: Graph, scales: tuple[float, ...]) -> float:
    """The largest of 8, 4, 2, 1 such that the program stays within range on inputs of these scales times it.

    The inner ops of a softmax or norm do not count: each µGraph computes them in its own order.
    """
    fitting = (m for m in _LARGE if _run(program, [m * scale for scale in scales]).fits)
    return next(fitting, 1.0)


def _fit_products(program: Graph, scales: list[float]) -> list[float]:
    for _ in range(_MOST_ROUNDS):
        excess = _run(program, scales, fitting=True).excess
        if not excess:
            break
        scales = [scale * excess.get(place, 1.0) for place, scale in enumerate(scales)]
    return scales


def _run(program: Graph, scales: Sequence[float], fitting: bool = False) -> "_SampleAlgebra":
    algebra, whole, roots = _SampleAlgebra(fitting), whole_inputs(program), root_inputs(expand(program))
    generator = np.random.default_rng(0)
    inputs = []
    for place, (kind, scale) in enumerate(zip(program.input_types, scales, strict=True)):
        numbers = generator.standard_normal(SAMPLES)
        if place in whole:
            drawn = np.floor(whole[place] * generator.random(SAMPLES))
            inputs.append(_Sample(kind.shape, FloatAlgebra(rounds=kind.dtype.is_integer).cast(drawn, kind.dtype)))
        elif place in roots:
            inputs.append(_Sample(kind.shape, 0.5 + generator.random(SAMPLES)))
        else:
            inputs.append(_Sample(kind.shape, scale * numbers, place))
    for value in evaluate(program, inputs, algebra, _WHOLE):
        algebra.settle(value)
    return algebra


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """A sample of the elements of a value.

    `source` is the input whose rearrangement the value is. `pending`: the value is a matrix product of this input, times
    constants, which no other op has read yet; `squared`: of this input with itself.
    """

    extents: Shape
    numbers: Array
    source: int | None = None
    pending: int | None = None
    squared: bool = False


class _SampleAlgebra:
    """`fits`: every value stays within its type; `excess`: where `fitting`, the inputs to make smaller, and by which factors.

    A product is made smaller at once, so that one run finds the factors of a deep program.
    """

    def __init__(self, fitting: bool) -> None:
        self.fits = True
        self.excess: dict[int, float] = {}
        self._is_exact = fitting  # so far, all numbers are those of the smaller inputs
        self.generator = np.random.default_rng(1)

    def settle(self, x: _Sample) -> _Sample:
        """Record the input whose product has a variance above 1."""
        if x.pending is not None and self._is_exact:
            finite = x.numbers[np.isfinite(x.numbers)]
            size = float(np.sqrt(np.mean(finite**2))) if finite.size else 1.0
            bits = round(log2(size) / (2 if x.squared else 1)) if size > 1 else 0
            if bits > 0 and x.pending in self.excess:
                self._is_exact = False
            elif bits > 0:
                self.excess[x.pending] = 2.0**-bits
                x.numbers[:] *= 2.0 ** -(2 * bits if x.squared else bits)
                self._is_exact = finite.size == x.numbers.size
        return x

    def shape(self, x: _Sample) -> Shape:
        return x.extents

    def elementwise(self, op: str, operands: Sequence[_Sample], attributes: Attributes) -> _Sample:
        shape = broadcast([x.extents for x in operands], {})
        if op != "scale":
            operands = [self.settle(x) for x in operands]
        with np.errstate(all="ignore"):
            numbers = ELEMENTWISE[op](np, *(x.numbers for x in operands), **attributes)
        if op == "scale":
            return _Sample(shape, numbers, operands[0].source, operands[0].pending, operands[0].squared)
        return _Sample(shape, numbers)

    def reduce(self, kind: str, x: _Sample, axes: tuple[int, ...]) -> _Sample:
        self.settle(x)
        rank = len(x.extents)
        shape = tuple(1 if i - rank in axes else extent for i, extent in enumerate(x.extents))
        return _Sample(shape, self.reduced(kind, x.numbers, prod(x.extents[axis] for axis in axes)))

    def reduced(self, kind: str, numbers: Array, count: int) -> Array:
        """By the central limit theorem; the largest of n normal numbers is near √(2 ln n)."""
        with np.errstate(all="ignore"):
            mean, spread = _mean(numbers), np.std(numbers)
            noise = self.generator.standard_normal(SAMPLES)
            match kind:
                case "sum":
                    return count * mean + sqrt(count) * spread * noise
                case "mean":
                    return mean + spread / sqrt(count) * noise
                case "max":
                    return mean + spread * (sqrt(2 * log(count)) if count > 1 else noise) + np.zeros(SAMPLES)
                case _:
                    raise AssertionError(f"no sample of the reduction {kind}")

    def matmul(self, x: _Sample, y: _Sample) -> _Sample:
        self.settle(x)
        self.settle(y)
        shape = (*broadcast((x.extents[:-2], y.extents[:-2]), {}), x.extents[-2], y.extents[-1])
        return self.contracted(x, y, shape, x.extents[-1])

    def contracted(self, x: _Sample, y: _Sample, shape: Shape, count: int) -> _Sample:
        """Sums of `count` products."""
        with np.errstate(all="ignore"):
            products = x.numbers * self.generator.permutation(y.numbers)
            if _mean(x.numbers) == 0 or _mean(y.numbers) == 0:
                products -= np.mean(products)
        numbers = self.reduced("sum", products, count)
        sources = [source for source in (y.source, x.source) if source is not None]  # weights are mostly on the right
        return _Sample(shape, numbers, None, sources[0] if sources else None, len(sources) == 2 and sources[0] == sources[1])

    def rearrange(self, row: Op, operands: Sequence[_Sample], lead: int, attributes: Attributes) -> _Sample:
        leading = broadcast([x.extents[:lead] for x in operands], {})
        shape = (*leading, *row.shape([x.extents[lead:] for x in operands], attributes))
        if len(operands) == 1:
            return _moved(operands[0], shape)
        return self._mixed(operands, shape)

    def library(self, row: Op, operands: Sequence[_Sample], lead: int, attributes: Attributes) -> _Sample:
        leading = broadcast([x.extents[:lead] for x in operands], {}) if operands else (1,) * lead
        shape = (*leading, *row.shape([x.extents[lead:] for x in operands], attributes))
        data = [x for place, x in enumerate(operands) if place != row.indices]
        if row.rearrange is not None:
            return _moved(data[0], shape) if len(data) == 1 else self._mixed(data, shape)
        sample: _Sample = computed(_LibrarySamples(self, shape), row, operands, lead, attributes)
        return sample

    def view(self, x: _Sample, shape: Shape, move: Callable[[Array], Array]) -> _Sample:
        return _moved(x, shape)

    def join(self, pieces: Sequence[_Sample], axis: int) -> _Sample:
        extents = list(pieces[0].extents)
        extents[axis] = sum(piece.extents[axis] for piece in pieces)
        return self._mixed(pieces, tuple(extents))

    def _mixed(self, parts: Sequence[_Sample], shape: Shape) -> _Sample:
        numbers = np.concatenate([self.settle(part).numbers for part in parts])
        return _Sample(shape, self.generator.permutation(numbers)[:SAMPLES])

    def cast(self, x: _Sample, dtype: DType) -> _Sample:
        if not dtype.is_integer:  # whole numbers are drawn within their range
            self.fits &= bool((~(np.abs(x.numbers) > dtype.largest / _MARGIN)).all())
        return x


@dataclass(frozen=True, slots=True)
class _LibrarySamples:
    """The functions of which the records of library ops are made (`ir.op.library`), for a result of some extents."""

    algebra: _SampleAlgebra
    extents: Shape
    xp: Any = np

    def constant(self, array: Array, lead: int) -> _Sample:
        return _Sample(self.extents, self.algebra.generator.choice(array.ravel(), SAMPLES))

    def filled(self, shape: Shape, value: Fraction, lead: int) -> _Sample:
        return _Sample(self.extents, np.full(SAMPLES, float(value)))

    def running_sum(self, x: _Sample, axis: int) -> _Sample:
        return self._over("sum", x, self.extents[axis])

    def order(self, x: _Sample, lead: int, attributes: Attributes) -> _Sample:
        extent = self.algebra.settle(x).extents[lead + attributes["dim"]]
        return _Sample(self.extents, np.floor(extent * self.algebra.generator.random(SAMPLES)))

    def convolved(self, x: _Sample, weight: _Sample, lead: int, attributes: Attributes) -> _Sample:
        x, weight = map(self.algebra.settle, (x, weight))
        terms = prod(weight.extents[lead + 1 :])
        if "output_pads" in attributes:  # of the places in a window every s-th one meets an element
            terms = prod(max(1, k // s) for k, s in zip(weight.extents[lead + 2 :], attributes["strides"], strict=True))
            terms *= weight.extents[lead] // attributes["groups"]
        return self.algebra.contracted(x, weight, self.extents, terms)

    def largest_of_windows(self, x: _Sample, lead: int, attributes: Attributes) -> _Sample:
        return self._over("max", x, prod(attributes["window"]))

    def mean_of_windows(self, x: _Sample, lead: int, attributes: Attributes) -> _Sample:
        return self._over("mean", x, prod(attributes["window"]))

    def _over(self, kind: str, x: _Sample, count: int) -> _Sample:
        return _Sample(self.extents, self.algebra.reduced(kind, self.algebra.settle(x).numbers, count))


def _mean(numbers: Array) -> float:
    """The mean, or 0 where it is not significant: sums of many would multiply its error."""
    mean = float(np.mean(numbers))
    return mean if not abs(mean) < 4 * float(np.std(numbers)) / sqrt(SAMPLES) else 0.0


def _moved(x: _Sample, shape: Shape) -> _Sample:
    return _Sample(shape, x.numbers, x.source, x.pending, x.squared)
