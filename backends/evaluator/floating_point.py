"""The algebra of floating-point numbers, on NumPy or CuPy arrays: exact (float64), or rounding as the kernels do.

Not-a-number and infinity are values here, without warnings: comparisons of results must refuse them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator import library_ops
from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import do_all, for_each_thread
from mirage_eg.backends.evaluator.elementwise_kernels import LONGEST_REDUCTION, in_chunks, reduction
from mirage_eg.backends.evaluator.matmul import product
from mirage_eg.ir.custom_ops import OpSpec, OpTable
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.ops import Attributes, Op
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.wide_factors import within_range


@dataclass(frozen=True, slots=True)
class FloatAlgebra:
    """Arrays of the module `xp`, computed in `working` precision (float32 or float64).

    With `rounds`, values in memory and operands of matrix units are rounded to their own types, as in kernels; bfloat16 is
    emulated.
    """

    xp: Any = np
    working: DType = DType.float64
    rounds: bool = False

    def shape(self, x: Array) -> Shape:
        """Extents of x."""
        return tuple(x.shape)

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Attributes) -> Array:
        """By the table ELEMENTWISE; a cast rounds where this algebra does."""
        if op == "cast":
            return self.cast(operands[0], DType(attributes["dtype"]))

        def compute(*chunks: Array) -> Array:
            with np.errstate(all="ignore"):  # threads do not inherit it
                return ELEMENTWISE[op](self.xp, *map(self._wide, chunks), **attributes)

        return in_chunks(compute, *operands, dtype=np.dtype(str(self.working))) if self.xp is np else compute(*operands)

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...]) -> Array:
        """In working precision; float32 is summed in pairs along every axis, as kernels do about."""
        if self.xp is not np and kind == "mean" and self.working is DType.float64:
            count = prod(x.shape[axis] for axis in axes)
            if count <= LONGEST_REDUCTION:
                return reduction(self.xp, "mean")(x, float(count), axis=axes, keepdims=True)
        with np.errstate(all="ignore"):
            if self.xp is np and kind != "max" and self.working is DType.float32:
                total = _sum_in_pairs(self._wide(x), axes)
                return total if kind == "sum" else total / np.float32(prod(x.shape[axis] for axis in axes))
            return REDUCTIONS[kind](self._wide(x), axis=axes, keepdims=True)

    def matmul(self, x: Array, y: Array) -> Array:
        """Operands rounded by `cast` beforehand, accumulated in working precision."""
        with np.errstate(all="ignore"):
            return product(self.xp, x, y, np.dtype(str(self.working)))

    def rearrange(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """The op's own rule."""
        assert row.rearrange is not None
        return row.rearrange(self.xp, operands, lead, attributes)

    def library(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        """By `library_ops`."""
        with np.errstate(all="ignore"):
            return self._wide(library_ops.numbers(self.xp, row, list(map(self._wide, operands)), lead, attributes))

    def view(self, x: Array, shape: Shape, move: Callable[[Array], Array]) -> Array:
        """`move` itself."""
        return move(x)

    def join(self, pieces: Sequence[Array], axis: int) -> Array:
        """Concatenation."""
        return self.xp.concatenate(pieces, axis=axis)

    def cast(self, x: Array, dtype: DType) -> Array:
        """The value rounded to `dtype` where this algebra rounds."""
        if not self.rounds or dtype is DType.float64 or dtype is self.working:
            return x
        with np.errstate(over="ignore", invalid="ignore"):
            match dtype:
                case DType.bfloat16:
                    return self._wide(_round_to_bfloat16(self.xp, x.astype(self.xp.float32, copy=False)))
                case DType.bool:
                    return self._wide(self.xp.where(x != 0, 1, 0))
                case DType.float16 if self.xp is np and x.dtype == np.float32:
                    return self._wide(_round_to_float16(x))
                case _:
                    return self._wide(x.astype(self.xp.dtype(str(dtype))))

    def _wide(self, x: Array) -> Array:
        """x in working precision; inputs are stored in narrower types until their first use."""
        return x.astype(self.xp.dtype(str(self.working)), copy=False)


REDUCTIONS: Mapping[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max}  # CuPy's by dispatch


def _sum_in_pairs(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes, which NumPy takes in pairs along the last axis only: elsewhere the error grows with the terms."""
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        rest = None
        while axis < x.ndim - 1 and (count := x.shape[axis]) > 1:
            first, second, odd = np.split(x, (count // 2, count // 2 * 2), axis)
            x = first + second
            if count % 2:
                rest = odd if rest is None else rest + odd
        x = x.sum(axis, keepdims=True)
        x = x if rest is None else x + rest
    return x


_HALF_CHUNK = 1 << 15  # the temporaries of a chunk stay in the cache


def _round_to_float16(x: Array) -> Array:
    """float32 rounded to the nearest float16, ties to even, several times faster than NumPy's conversion there and back.

    Normal float16 numbers have 13 bits less than float32. Subnormal ones are the multiples of 2^-24, as are the float32 numbers
    between ½ and 1: adding ¾ rounds. Larger numbers become infinite.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(flat)

    def fill(starts: Sequence[int]) -> None:
        with np.errstate(all="ignore"):  # threads do not inherit it
            for start in starts:
                chunk = flat[start : start + _HALF_CHUNK]
                bits = chunk.view(np.uint32)
                rounded = bits >> np.uint32(13)
                rounded &= np.uint32(1)
                rounded += np.uint32(0xFFF)
                rounded += bits
                rounded &= np.uint32(0xFFFFE000)
                target = result[start : start + _HALF_CHUNK]
                target[:] = rounded.view(np.float32)
                size = np.abs(chunk)
                small = size < _LEAST_NORMAL_HALF
                if small.any():
                    moved = size + _THREE_QUARTERS
                    moved -= _THREE_QUARTERS
                    np.copysign(moved, chunk, out=target, where=small)
                if not size.max() < _OVERFLOWS_HALF:  # ±∞, and not-a-number stays
                    np.multiply(chunk, np.float32(np.inf), out=target, where=~(size < _OVERFLOWS_HALF))

    do_all(fill, for_each_thread(range(0, flat.size, _HALF_CHUNK)))
    return result.reshape(x.shape)


_LEAST_NORMAL_HALF = np.float32(2.0**-14)
_THREE_QUARTERS = np.float32(0.75)
_OVERFLOWS_HALF = np.float32(65520)


def _round_to_bfloat16(xp: Any, x: Array) -> Array:
    """The nearest float32 whose lower 16 bits are zero, ties to even; infinities and not-a-numbers stay."""
    bits = xp.ascontiguousarray(x).view(xp.uint32)
    rounded = (bits + (xp.uint32(0x7FFF) + ((bits >> 16) & 1))) & xp.uint32(0xFFFF0000)
    return xp.where(xp.isfinite(x), rounded.view(xp.float32).reshape(x.shape), x)


_STEP = 1 / 128
_LAST = 6.0  # erf(6) rounds to 1


@cache
def _erf_table(xp: Any) -> Array:
    count = int(_LAST / _STEP)
    return xp.asarray([math.erf(i * _STEP) for i in range(-count, count + 1)])


def erf(xp: Any, x: Array) -> Array:
    """The error function to about 1e-16: a table and six terms of Taylor's series around its entries.

    The n-th derivative of erf is 2/√π · exp(−c²) · (−1)^(n−1) · H_{n−1}(c), H the physicists' Hermite polynomials.
    """
    wide = xp.clip(x.astype(xp.float64, copy=False), -_LAST, _LAST)
    index = xp.rint(wide / _STEP)
    centre = index * _STEP
    d = wide - centre
    previous, hermite = xp.zeros_like(d), xp.ones_like(d)
    power, series = d, d
    for n in range(1, 7):
        previous, hermite = hermite, 2 * centre * hermite - 2 * (n - 1) * previous
        power = -power * d / (n + 1)
        series = series + power * hermite
    table = _erf_table(xp)
    filled = xp.nan_to_num(index, nan=0.0).astype(xp.int64) + len(table) // 2
    value = table[filled] + (2 / math.sqrt(math.pi)) * xp.exp(-centre * centre) * series
    return value.astype(x.dtype, copy=False)


def _sigmoid(xp: Any, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _sigmoid_of_gelu_tanh(xp: Any, x: Array) -> Array:
    return _sigmoid(xp, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _mish(xp: Any, x: Array) -> Array:
    """x · tanh(log(1 + eˣ)) = x · (1 + 2n)/(1 + 2n + 2n²) with n = e⁻ˣ, and with n = eˣ x · (n² + 2n)/(n² + 2n + 2)."""
    n = xp.exp(-xp.abs(x))
    return x * xp.where(x > 0, (1 + 2 * n) / (1 + 2 * n + 2 * n * n), (n * n + 2 * n) / (n * n + 2 * n + 2))


def _gelu(xp: Any, x: Array) -> Array:
    return x * (0.5 + 0.5 * erf(xp, x * math.sqrt(0.5)))


_NEAR = 0.125  # a rounding may have moved an indicator


def _where(xp: Any, condition: Array, x: Array, y: Array) -> Array:
    """Not-a-number where the condition is no indicator."""
    return xp.where(xp.abs(condition - 1) < _NEAR, x, xp.where(xp.abs(condition) < _NEAR, y, xp.nan))


def _indicator(holds: Array, x: Array) -> Array:
    """1 where `holds`, 0 elsewhere; no comparison with not-a-number holds."""
    return holds.astype(x.dtype)


def _scaled(xp: Any, x: Array, factor: Fraction) -> Array:
    for each in within_range(factor):
        x = x * each
    return x


# One row for each elementwise op; a test holds the keys equal to the op table's.
_PACKAGED: Mapping[str, Callable[..., Array]] = {
    "add": lambda xp, x, y: x + y,
    "sub": lambda xp, x, y: x - y,
    "mul": lambda xp, x, y: x * y,
    "div": lambda xp, x, y: x / y,
    "maximum": lambda xp, x, y: xp.maximum(x, y),
    "minimum": lambda xp, x, y: xp.minimum(x, y),
    "abs": lambda xp, x: xp.abs(x),
    "less": lambda xp, x, y: _indicator(x < y, x),
    "less_equal": lambda xp, x, y: _indicator(x <= y, x),
    "equal": lambda xp, x, y: _indicator(x == y, x),
    "where": _where,
    "cast": lambda xp, x, dtype: x,  # `FloatAlgebra` rounds
    "exp": lambda xp, x: xp.exp(x),
    "log": lambda xp, x: xp.log(x),
    "log2": lambda xp, x: xp.log2(x),
    "log10": lambda xp, x: xp.log10(x),
    "log1p": lambda xp, x: xp.log1p(x),
    "expm1": lambda xp, x: xp.expm1(x),
    "square": lambda xp, x: x * x,
    "sqrt": lambda xp, x: xp.sqrt(x),
    "rsqrt": lambda xp, x: 1 / xp.sqrt(x),
    "silu": lambda xp, x: x * _sigmoid(xp, x),
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "relu": lambda xp, x: xp.maximum(x, 0),
    "tanh": lambda xp, x: xp.tanh(x),
    "gelu_tanh": lambda xp, x: x * _sigmoid_of_gelu_tanh(xp, x),
    "erf": erf,
    "sin": lambda xp, x: xp.sin(x),
    "cos": lambda xp, x: xp.cos(x),
    "softplus": lambda xp, x: xp.logaddexp(x, xp.zeros_like(x)),
    "mish": _mish,
    "leaky_relu": lambda xp, x, slope: xp.where(x > 0, x, float(slope) * x),
    "elu": lambda xp, x, alpha: xp.where(x > 0, x, float(alpha) * xp.expm1(xp.minimum(x, 0))),
    "pow": lambda xp, x, exponent: xp.power(x, float(exponent)),
    "clamp": lambda xp, x, low, high: xp.minimum(xp.maximum(x, float(low)), float(high)),
    "scale": _scaled,
    "shift": lambda xp, x, offset: x + float(offset),
    "fill": lambda xp, x, value: xp.full_like(x, float(value)),
}


def _custom(spec: OpSpec) -> Callable[..., Array]:
    return spec.numbers or partial(_numbers_by_definition, spec.name)


def _numbers_by_definition(name: str, xp: Any, *operands: Array, **attributes: Any) -> Array:
    definition = definition_of(name, attributes)
    assert definition is not None
    return by_definition(definition, operands, lambda op, *x, **given: ELEMENTWISE[op](xp, *x, **given))


ELEMENTWISE = OpTable(_PACKAGED, _custom)
