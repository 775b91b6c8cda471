"""Fingerprints: 64-bit keys of values that are equal up to rounding."""

from typing import Any

import numpy as np

Array = Any

_DIGITS = 2.0**23  # steps of a significand between two powers of two: 7 decimal digits
_ZERO = 1e-7  # smaller numbers are differences that rounding left
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))


def fingerprints(values: Array, seed: int) -> Array:
    """A key for each row; not-a-number is a value of its own.

    Rows that differ share a key with probability 2^-64 for each pair. Equal rows have different keys only if a rounding error
    crosses a boundary of the seventh digit, which costs an pair, never a false one.
    """
    significand, exponent = np.frexp(np.abs(np.where(np.abs(values) < _ZERO, 0.0, values)))
    with np.errstate(invalid="ignore"):  # one code for each step of a digit, also across powers of two
        codes = (np.rint(significand * (2 * _DIGITS)) - _DIGITS + exponent * _DIGITS).astype(np.int64)
    codes = np.where(values < 0, ~codes, codes)
    codes = np.where(np.isnan(values), np.int64(1 << 62), codes).view(np.uint64)
    return _keys(codes, np.random.default_rng(seed))


def exact_fingerprints(values: Array, seed: int) -> Array:
    """A key for each row of whole numbers: equal rows have equal keys, others share one with probability 2^-64."""
    return _keys(values.astype(np.int64).view(np.uint64), np.random.default_rng((seed, values.shape[1])))


def _keys(codes: Array, draw: np.random.Generator) -> Array:
    mixed = codes * _MULTIPLIERS[0]
    mixed ^= mixed >> np.uint64(29)
    columns = draw.integers(1 << 63, size=codes.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (mixed * columns).sum(axis=1, dtype=np.uint64) * _MULTIPLIERS[1]


def agree(left: Array, right: Array) -> bool:
    """Whether two rows are equal where both are defined."""
    both = ~(np.isnan(left) | np.isnan(right))
    return bool(np.isclose(left[both], right[both], rtol=1e-8, atol=1e-8).all())
