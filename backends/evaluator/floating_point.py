"""The algebra of floating-point numbers, on NumPy or CuPy arrays: exact (float64), or rounding as the kernels do.

Not-a-number and infinity are values here, without warnings: comparisons of results must refuse them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator import library_ops
from mirage_eg.backends.evaluator.algebra import Array, ArrayMoves
from mirage_eg.backends.evaluator.cpu_threads import do_all, for_each_thread, keep_step_with, raise_if_stopped
from mirage_eg.backends.evaluator.elementwise_kernels import LONGEST_REDUCTION, in_chunks, reduction
from mirage_eg.backends.evaluator.matmul import product
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.elementwise import CASTS, elementwise_table
from mirage_eg.ir.ops import Op
from mirage_eg.ir.shapes import Attributes


@dataclass(frozen=True, slots=True)
class FloatAlgebra(ArrayMoves):
    """Arrays of the module `xp`, computed in `working` precision (float32 or float64).

    With `rounds`, values in memory and operands of matrix units are rounded to their own types, as in kernels; bfloat16 is
    emulated.
    """

    xp: Any = np
    working: DType = DType.float64
    rounds: bool = False

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Attributes) -> Array:
        """By the table ELEMENTWISE; a cast rounds where this algebra does."""
        if op in CASTS:
            return self.cast(operands[0], DType(attributes["dtype"]))

        def compute(*chunks: Array) -> Array:
            with np.errstate(all="ignore"):  # threads do not inherit it
                return ELEMENTWISE[op](self.xp, *map(self._wide, chunks), **attributes)

        if self.xp is np:
            return in_chunks(compute, *operands, dtype=np.dtype(str(self.working)))
        keep_step_with(self.xp)
        return compute(*operands)

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

    def library(self, row: Op, operands: Sequence[Array], lead: int, attributes: Attributes) -> Array:
        with np.errstate(all="ignore"):
            return self._wide(library_ops.numbers(self.xp, row, list(map(self._wide, operands)), lead, attributes))

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
                case DType.int8 | DType.uint8 | DType.int16:  # wraps
                    return self._wide(x.astype(self.xp.int64).astype(self.xp.dtype(str(dtype))))
                case _ if dtype.is_float8:
                    return self._wide(ELEMENTWISE[f"to_{dtype}"](self.xp, self._wide(x)))
                case DType.float16 if self.xp is np and x.dtype == np.float32:
                    return self._wide(_round_to_float16(x))
                case _:
                    return self._wide(x.astype(self.xp.dtype(str(dtype))))

    def _wide(self, x: Array) -> Array:
        """x in working precision; inputs are stored in narrower types until their first use."""
        return x.astype(self.xp.dtype(str(self.working)), copy=False)


REDUCTIONS: Mapping[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max}  # CuPy's by dispatch


class MaskingFloats(FloatAlgebra):
    """Numbers whose products of matrices take 0 · not-a-number for 0, as kernels that leave out what a mask hides."""

    def matmul(self, x: Array, y: Array) -> Array:
        """Not-a-number where a term has one and its other factor is not 0."""
        missing, numbers = zip(*((self.xp.isnan(it), self.xp.where(self.xp.isnan(it), 0, it)) for it in (x, y)), strict=True)
        terms = super().matmul(missing[0] * 1.0, (y != 0) * 1.0) + super().matmul((x != 0) * 1.0, missing[1] * 1.0)
        return self.xp.where(terms > 0, np.nan, super().matmul(*numbers))


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
                raise_if_stopped()
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


def _numbers_by_definition(name: str, xp: Any, *operands: Array, **attributes: Any) -> Array:
    definition = definition_of(name, attributes)
    assert definition is not None
    return by_definition(definition, operands, lambda op, *x, **given: ELEMENTWISE[op](xp, *x, **given))


ELEMENTWISE = elementwise_table(lambda op: op.numbers or partial(_numbers_by_definition, op.name))
