"""Batched matrix products as fewer, larger ones. Trusted.

If one operand does not vary along a batch dim, the products along this dim are one product: Xᵢ Y for all i are rows of it,
X Yⱼ for all j columns. The tiles of a block graph are such batches: merged, they are the matrices before tiling, often without
a copy, and BLAS computes one large product in place of thousands of small ones. (CuPy would also launch a kernel for each
dim of each operand, to list the addresses of the small matrices.)

    M, K, N   extents of one product
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.shapes import Shape


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
