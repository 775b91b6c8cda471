"""Where the outputs of a µGraph differ from those of its program, in the field and as numbers. Part of the trusted core."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.meanings import Component
from mirage_eg.backends.modular import PRIMES
from mirage_eg.backends.passes import one_pass
from mirage_eg.verdict import Difference

Found = tuple[int, Difference]  # the place of the draw among those that are stacked, and the first difference there

_DIFFERS = float(1 << 31)  # what an element that differs adds to a sum in which an undefined one counts 1


def compare_residues(xp: Any, name: str, got: Component, want: Component, stack: int) -> Callable[[], tuple[int, Found | None]]:
    """How many elements of output `name` are defined on both sides, and the first of them that differs.

    On a GPU the answer is asked for here and waited for when it is taken. `stack` dims stand before those of the output.
    """
    if xp is np:
        found = _count_defined(got, want), _difference(name, got, want, stack)
        return lambda: found
    total = one_pass(xp, "mismatch", _mismatch, got.residues, want.residues, constants=()).sum()

    def wait() -> tuple[int, Found | None]:
        if (number := float(total)) < _DIFFERS:
            return got.residues.size - int(number), None
        x, y = (Component(side.residues, xp.isnan(side.residues)) for side in (got, want))
        return _count_defined(x, y), _difference(name, x, y, stack)

    return wait


def _mismatch(x: Array, y: Array) -> Array:
    undefined = np.isnan(x) | np.isnan(y)
    return np.where(undefined, 1.0, np.where(x != y, _DIFFERS, 0.0))


def _count_defined(x: Component, y: Component) -> int:
    masks = [component.undefined for component in (x, y) if component.undefined is not None]
    return int(x.residues.size) - (int(np.logical_or(masks[0], masks[-1]).sum()) if masks else 0)


def _difference(name: str, got: Component, want: Component, stack: int) -> Found | None:
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
    strict: bool,
) -> Callable[[], tuple[float, Difference | None, bool]]:
    """The largest error, the first beyond `tolerance`, and whether every output has elements that could be compared.

    Errors are relative to `sizes` (those of `sizes_of`). Elements that are not finite in `wanted` are left out; with `strict`,
    those that are not finite in `got` alone are differences, else left out too. On a GPU the answer is asked for here and
    waited for when it is taken.
    """
    lost = np.float64(np.inf if strict else _LEFT_OUT)

    def error_of(x: Array, want: Array, size: Array) -> Array:
        constants = () if xp is np else (lost,)
        return one_pass(xp, "error", lambda x, want, size: _error(x, want, size, lost), x, want, size, constants=constants)

    errors = [error_of(*arrays) for arrays in zip(got, wanted, sizes, strict=True)]
    maxima = [error.max() for error in errors]

    def wait() -> tuple[float, Difference | None, bool]:
        worst, first, compared = 0.0, None, True
        for name, x, want, error, maximum in zip(names, got, wanted, errors, maxima, strict=True):
            largest = float(maximum)
            compared &= largest > _LEFT_OUT
            worst = max(worst, largest)
            if first is None and largest > tolerance:
                index = _first(error > tolerance)
                first = Difference(name, index, float(x[index]), float(want[index]), "float64")
        return worst, first, compared

    if xp is np:
        found = wait()
        return lambda: found
    return wait


def sizes_of(xp: Any, wanted: Sequence[Array]) -> list[Array]:
    """What errors are relative to: |wanted| + rms, where that is not 0."""
    sizes = []
    with np.errstate(all="ignore"):
        for want in wanted:
            finite = xp.isfinite(want)
            size = xp.sqrt(xp.mean(xp.where(finite, want, 0) ** 2)) + xp.abs(want)
            sizes.append(xp.where(size > 0, size, 1))
    return sizes


_LEFT_OUT = -1.0


def _error(x: Array, want: Array, size: Array, lost: float) -> Array:
    with np.errstate(all="ignore"):
        error = np.where(np.isfinite(x), np.abs(x - want) / size, lost)
        return np.where(np.isfinite(want), error, _LEFT_OUT)


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
