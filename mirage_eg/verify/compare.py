"""Compare the outputs of a µGraph with those of its program, in the field and in float64. Part of the trusted core."""

from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.elementwise_kernels import one_pass
from mirage_eg.backends.evaluator.field_semantics import Component
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.verify.verdict import Difference

LEAST_COVERAGE = 0.5  # of the elements of an output that must be defined on both sides
FirstDifference = tuple[int, Difference]  # the position of its trial among the stacked ones, and the first difference there


class Compared(NamedTuple):
    """One output in the field; `never_defined` and `lost` have the shape of the output, or are one value for all of it."""

    size: int
    defined: int  # elements, on both sides
    difference: FirstDifference | None
    never_defined: Array  # on both sides in any trial
    lost: Array  # undefined for the µGraph in a trial in which the program defines it


def compare_residues(xp: Any, name: str, got: Component, want: Component, stack: int) -> Callable[[], Compared]:
    """How many elements of output `name` are defined on both sides, and the first of them that differs.

    On a GPU the comparison is launched here, and the returned function waits for it. The first `stack` dims are trials.
    """
    if xp is np:
        compared = _compared(name, got, want, stack)
        return lambda: compared
    total = one_pass(xp, "mismatch", _mismatch, got.residues, want.residues, constants=()).sum()

    def wait() -> Compared:
        size = int(got.residues.size)
        if float(total) == 0:
            return Compared(size, size, None, np.False_, np.False_)
        x, y = (Component(side.residues, xp.isnan(side.residues)) for side in (got, want))
        return _compared(name, x, y, stack)

    return wait


def _compared(name: str, got: Component, want: Component, stack: int) -> Compared:
    difference, size = _difference(name, got, want, stack), int(got.residues.size)
    if got.undefined is None and want.undefined is None:
        return Compared(size, size, difference, np.False_, np.False_)
    missing, beyond = (np.False_ if side.undefined is None else side.undefined for side in (got, want))
    undefined, lost = missing | beyond, missing & ~beyond
    defined = size - int(np.broadcast_to(undefined, got.residues.shape).sum())
    never_defined = undefined.all(axis=0) if stack else undefined
    return Compared(size, defined, difference, never_defined, lost.any(axis=0) if stack else lost)


def _mismatch(x: Array, y: Array) -> Array:
    return np.where(x == y, 0.0, 1.0)


def _difference(name: str, got: Component, want: Component, stack: int) -> FirstDifference | None:
    wrong = got.residues != want.residues
    for undefined in (got.undefined, want.undefined):
        if undefined is not None:
            wrong &= ~undefined
    if not bool(wrong.any()):
        return None
    index = _first(wrong)
    values = float(got.residues[index]), float(want.residues[index])
    return index[0] if stack else 0, Difference(name, index[stack:], *values, f"modulo {PRIMES[0]}")


def compare_numbers(
    xp: Any,
    names: Sequence[str],
    got: Sequence[Array],
    wanted: Sequence[Array],
    sizes: Sequence[Array],
    tolerance: float,
    domain: str = "float64",
) -> Callable[[], tuple[float, Difference | None, bool]]:
    """The largest error, the first beyond `tolerance`, and whether every output has elements that could be compared.

    Errors are relative to `sizes` (those of `sizes_of`). Elements that are not finite in `wanted` are left out; elements that
    are not finite in `got` alone are differences. On a GPU the comparison is launched here, and the returned function waits.
    """
    errors = [one_pass(xp, "error", _error, *arrays, constants=()) for arrays in zip(got, wanted, sizes, strict=True)]
    maxima = [error.max() for error in errors]

    def wait() -> tuple[float, Difference | None, bool]:
        worst, first, compared = 0.0, None, True
        for name, x, want, error, maximum in zip(names, got, wanted, errors, maxima, strict=True):
            largest = float(maximum)
            compared &= largest > _LEFT_OUT
            worst = max(worst, largest)
            if first is None and largest > tolerance:
                index = _first(error > tolerance)
                value = float(x[index])
                first = Difference(name, index, nan if isnan(value) else value, float(want[index]), domain)
        return worst, first, compared

    if xp is np:
        result = wait()
        return lambda: result
    return wait


def with_spread(xp: Any, sizes: Sequence[Array], spreads: Sequence[Array], tolerance: float) -> list[Array]:
    """`sizes`, larger where rounding alone moves a value further than the tolerance (`backends.evaluator.random_rounding`)."""
    return [xp.maximum(size, SPREAD / tolerance * xp.nan_to_num(spread)) for size, spread in zip(sizes, spreads, strict=True)]


def sizes_of(xp: Any, wanted: Sequence[Array]) -> list[Array]:
    """The sizes that errors are relative to, in float64: |wanted| + rms, or 1 where that is 0."""
    sizes = []
    with np.errstate(all="ignore"):
        for want in (it.astype(np.float64, copy=False) for it in wanted):
            finite = xp.isfinite(want)
            size = xp.sqrt(xp.mean(xp.where(finite, want, 0) ** 2)) + xp.abs(want)
            sizes.append(xp.where(size > 0, size, 1))
    return sizes


_LEFT_OUT = -1.0
SPREAD = 4.0  # times the spread of the samples: the error that is allowed


def _error(x: Array, want: Array, size: Array) -> Array:
    with np.errstate(all="ignore"):
        error = np.where(np.isfinite(x), np.abs(x - want) / size, np.inf)
        return np.where(np.isfinite(want), error, _LEFT_OUT)


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
