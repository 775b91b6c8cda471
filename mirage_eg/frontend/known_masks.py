"""Masks of attention whose numbers are known at import: the indicator of the scores that count, in as few dims as it needs.

A model computes its mask of `arange`, comparisons and choices, for each sequence of a batch and often as 0 and −∞. What depends
on no argument and no weight is evaluated once. So a causal mask is the same input as that of `is_causal`. For cuDNN torch
writes the least number of float16 for −∞.
"""

from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import Any

import numpy as np

from mirage_eg.frontend.aten_call import Call
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.sizes import SizeExpression

HIDDEN_BY_CUDNN = -65504.0  # what torch 2.11 adds to a score that a bool mask hides from cuDNN; its exponential is 0


@dataclass(frozen=True, slots=True)
class KnownMask:
    """The scores that count: an indicator of queries and keys, None where all do. `shown` where each row has one."""

    indicator: Tensor | None
    shown: bool


def known_mask(call: Call, node: Any, rows: int, columns: int, hidden: float = -inf) -> KnownMask | None:
    """The mask that an FX node adds, or shows scores with, where its numbers are known.

    None where they are not, where they depend on weights, where sequences or heads differ, and where a number is neither 0
    nor at most `hidden`.
    """
    has_sizes = any(isinstance(extent, SizeExpression) for extent in (rows, columns))
    array = call.known(node) if not has_sizes and call.is_fixed(node) else None
    counts = None if array is None else counting_scores(array, rows, columns, hidden)
    if counts is None:
        return None
    if counts.all():
        return KnownMask(None, True)
    if np.array_equal(counts, np.tri(rows, columns, dtype=bool)):
        return KnownMask(call.causal_mask(rows, columns), True)
    digest = sha256(counts.tobytes()).hexdigest()[:16]
    indicator = call.lift(f"mask_{rows}_{columns}_{digest}", counts.shape, "bool", lambda: counts)
    return KnownMask(indicator, bool(counts.any(-1).all()))


def counting_scores(mask: Any, rows: int, columns: int, hidden: float = -inf) -> Any:
    """The indicator [rows, columns] that all sequences and heads share; None if they differ, or add other numbers.

    A finite number that is added to all scores of a row hides none of them: there is no indicator then.
    """
    for dim in range(mask.ndim - 2):
        first = mask[(slice(None),) * dim + (slice(1),)]
        if not (mask == first).all():
            return None
        mask = first
    mask = np.broadcast_to(mask.reshape(mask.shape[-2:]), (rows, columns))
    if mask.dtype == bool:
        return np.ascontiguousarray(mask)
    counts = mask == 0
    is_known = (counts | (mask <= hidden)).all() and (hidden == -inf or counts.any(-1).all())
    return np.ascontiguousarray(counts) if is_known else None
