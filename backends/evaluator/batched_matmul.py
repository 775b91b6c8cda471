"""A stack of matrix products as fewer, larger ones. Part of the trusted core.

Where one operand of a stack does not vary along a dim, the products along it are one: Xᵢ Y for all i are rows of one product,
X Yⱼ for all j its columns. The tiles of a block graph are stacks of that kind: seen so, they are the matrices that they were
cut from, often without a copy, and a library is asked for one large product instead of thousands of small ones. (CuPy would
also launch a kernel for each dim of each operand, to list where the small ones stand.)

    M, K, N   extents of one product
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.shapes import Shape


def batched_matmul(x: Array, y: Array, multiply: Callable[[Array, Array], Array], copies: bool) -> Array:
    """`multiply(x, y)`, a product of stacks of matrices, asked for with as few of them as can be.

    Without `copies` a dim is folded only where the operand stands in memory as the larger matrix does.
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
    made = [*stack, *rows, rank - 2, *columns, rank - 1]  # where each dim of the product belongs
    return product.transpose(sorted(range(len(made)), key=made.__getitem__)).reshape(*lead, m, n)


def with_rank(x: Array, rank: int) -> Array:
    """x with extents of 1 before its own."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape) if x.ndim < rank else x


def _at(extents: Sequence[int], axes: Sequence[int]) -> Shape:
    return tuple(extents[axis] for axis in axes)


def _merge(x: Array, axes: Sequence[int]) -> bool:
    """Whether these dims are one in memory, the last of them the fastest."""
    kept = [axis for axis in axes if x.shape[axis] > 1]
    return all(x.strides[slow] == x.strides[fast] * x.shape[fast] for slow, fast in pairwise(kept))
