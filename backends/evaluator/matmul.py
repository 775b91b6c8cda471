"""Matrix products whose operands are stored in a narrower type than the arithmetic. Trusted.

A float32 weight is widened chunk by chunk, in a buffer that stays in the cache: a widened copy of the whole weight would
cost several times the product itself, which for few rows is as fast as reading the weight.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import do_all, keep_step_with, raise_if_stopped, threads
from mirage_eg.ir.shapes import Shape, broadcast


def batched_matmul(x: Array, y: Array, multiply: Callable[[Array, Array], Array], copies: bool) -> Array:
    """The batched product of x and y by calls of `multiply` on batches as small as possible.

    Without `copies` a dim is merged only if this needs no copy of the operand.
    """
    rank = max(x.ndim, y.ndim)
    x, y = with_rank(x, rank), with_rank(y, rank)
    *x_lead, m, k = x.shape
    *y_lead, _, n = y.shape
    if x_lead == y_lead:
        return multiply(x, y)
    rows = [axis for axis in range(rank - 2) if y_lead[axis] == 1 < x_lead[axis]]
    columns = [axis for axis in range(rank - 2) if x_lead[axis] == 1 < y_lead[axis]]
    if not copies:
        rows = rows if _merge(x, (*rows, rank - 2)) else []
        columns = columns if _merge(y, (*columns, rank - 1)) else []
    lead = [max(pair) for pair in zip(x_lead, y_lead, strict=True)]
    stack = [axis for axis in range(rank - 2) if lead[axis] > 1 and axis not in rows and axis not in columns]
    units = [axis for axis in range(rank - 2) if lead[axis] == 1]
    product = multiply(
        x.transpose(*units, *columns, *stack, *rows, rank - 2, rank - 1).reshape(*_at(x.shape, stack), -1, k),
        y.transpose(*units, *rows, *stack, rank - 2, *columns, rank - 1).reshape(*_at(y.shape, stack), k, -1),
    )
    product = product.reshape(*_at(lead, stack), *_at(lead, rows), m, *_at(lead, columns), n)
    positions = [*stack, *rows, rank - 2, *columns, rank - 1]  # the dim of the result for each dim of the product
    return product.transpose(sorted(range(len(positions)), key=positions.__getitem__)).reshape(*lead, m, n)


def with_rank(x: Array, rank: int) -> Array:
    """x with leading extents of 1."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape) if x.ndim < rank else x


def _at(extents: Sequence[int], axes: Sequence[int]) -> Shape:
    return tuple(extents[axis] for axis in axes)


def _merge(x: Array, axes: Sequence[int]) -> bool:
    """Whether these dims are contiguous as one dim, the last one fastest."""
    long = [axis for axis in axes if x.shape[axis] > 1]
    return all(x.strides[slow] == x.strides[fast] * x.shape[fast] for slow, fast in pairwise(long))


CHUNK_ELEMENTS = 1 << 18  # widened at a time: 2 MB of float64
MOST_TERMS = 1 << 32  # of a product that nothing interrupts: tenths of a second
SMALL_ELEMENTS = 1 << 13  # of operands for which merging costs more than it saves on NumPy


def product(xp: Any, x: Array, y: Array, dtype: Any, settle: Callable[[Array], Array] = lambda product: product) -> Array:
    """x @ y for batches of matrices, computed in `dtype`; `settle` is applied to each new array, before any view of it."""
    if xp is not np:
        keep_step_with(xp)
        wide = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
        return batched_matmul(*wide, lambda x, y: settle(xp.matmul(x, y)), copies=True)
    if x.size + y.size <= SMALL_ELEMENTS:
        return settle(_on_numpy(x, y, dtype))
    return batched_matmul(x, y, lambda x, y: settle(_on_numpy(x, y, dtype)), copies=False)


def _on_numpy(x: Array, y: Array, dtype: Any) -> Array:
    if x.size + y.size <= CHUNK_ELEMENTS:
        return np.matmul(for_blas(x.astype(dtype, copy=False)), for_blas(y.astype(dtype, copy=False)))
    lead = broadcast((x.shape[:-2], y.shape[:-2]), {})
    result = np.empty((*lead, x.shape[-2], y.shape[-1]), dtype)

    def fill(part: tuple[Array, Array, Array]) -> None:
        with np.errstate(all="ignore"):  # threads do not inherit it; infinities are values
            _fill(*part, _WideningBuffers(dtype))

    do_all(fill, _parts(result, with_rank(x, result.ndim), with_rank(y, result.ndim)))
    return result


def _parts(result: Array, x: Array, y: Array) -> list[tuple[Array, Array, Array]]:
    """One part of the product for each thread, along the longest dim of the result."""
    axis = max(range(result.ndim), key=lambda axis: result.shape[axis])
    extent, count = result.shape[axis], min(result.shape[axis], threads())
    parts = []
    for start, stop in pairwise(extent * i // count for i in range(count + 1)):
        window = slice(start, stop)
        left = x if axis == result.ndim - 1 else _part(x, axis, window)
        right = y if axis == result.ndim - 2 else _part(y, axis, window)
        parts.append((result[(slice(None),) * axis + (window,)], left, right))
    return parts


def for_blas(x: Array) -> Array:
    """x, copied where neither of its last dims is dense: NumPy multiplies such arrays without BLAS."""
    last = [(extent, stride) for extent, stride in zip(x.shape[-2:], x.strides[-2:], strict=True) if extent > 1]
    dense = len(last) < 2 or any(stride == x.itemsize for _, stride in last)
    return x if dense and all(stride for _, stride in last) else np.ascontiguousarray(x)


class _WideningBuffers:
    """Widened copies of two operands, in buffers that are reused for the next two."""

    def __init__(self, dtype: Any) -> None:
        self._memory = [np.empty(0, dtype), np.empty(0, dtype)]

    def of(self, place: int, x: Array) -> Array:
        if x.dtype == self._memory[place].dtype:
            return for_blas(x)
        if self._memory[place].size < x.size:
            self._memory[place] = np.empty(x.size, self._memory[place].dtype)
        by_columns = abs(x.strides[-1]) > abs(x.strides[-2])  # the copy is written in the order in which x is read
        shape = (*x.shape[:-2], x.shape[-1], x.shape[-2]) if by_columns else x.shape
        copy = self._memory[place][: x.size].reshape(shape)
        copy = copy.swapaxes(-1, -2) if by_columns else copy
        copy[...] = x
        return copy


def _fill(result: Array, x: Array, y: Array, wide: _WideningBuffers) -> None:
    """Halve the longest dim of the larger operand until both fit into a chunk; K last, since its halves must be added.

    Without widening halve the rows or columns until there are few terms.
    """
    raise_if_stopped()
    as_stored = x.dtype == y.dtype == result.dtype
    if x.size + y.size <= CHUNK_ELEMENTS or (as_stored and result.size * x.shape[-1] <= MOST_TERMS):
        np.matmul(wide.of(0, x), wide.of(1, y), out=result)
        return
    stack = max(range(result.ndim - 2), key=lambda axis: result.shape[axis], default=None)
    if stack is not None and result.shape[stack] > 1:
        for half in _halves(result.shape[stack]):
            index = (slice(None),) * stack + (half,)
            _fill(result[index], _part(x, stack, half), _part(y, stack, half), wide)
        return
    (rows, count), columns = x.shape[-2:], y.shape[-1]
    by_rows = rows >= columns if as_stored else x.size > y.size and (rows >= count or count == 1)
    if rows > 1 and by_rows:
        for half in _halves(rows):
            _fill(result[..., half, :], x[..., half, :], y, wide)
    elif columns > 1 and (as_stored or abs(y.strides[-1]) > abs(y.strides[-2]) or count == 1):  # parts of y are dense in memory
        for half in _halves(columns):
            _fill(result[..., half], x, y[..., half], wide)
    elif count > 1:
        first, second = _halves(count)
        _fill(result, x[..., first], y[..., first, :], wide)
        rest = np.empty_like(result)
        _fill(rest, x[..., second], y[..., second, :], wide)
        result += rest
    else:  # one by one
        np.matmul(wide.of(0, x), wide.of(1, y), out=result)


def _halves(extent: int) -> tuple[slice, slice]:
    return slice(0, extent // 2), slice(extent // 2, extent)


def _part(x: Array, axis: int, half: slice) -> Array:
    return x[(slice(None),) * axis + (half,)] if x.shape[axis] > 1 else x
