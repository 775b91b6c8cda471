"""Where the outputs of a µGraph differ from those of its program, in the field and as numbers. Part of the trusted core."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.meanings import Component
from mirage_eg.backends.modular import PRIMES
from mirage_eg.verdict import Difference


def count_defined(x: Component, y: Component) -> int:
    """The number of elements that are defined on both sides."""
    masks = [component.undefined for component in (x, y) if component.undefined is not None]
    return int(x.residues.size) - (int(np.logical_or(masks[0], masks[-1]).sum()) if masks else 0)


def compare_residues(name: str, got: Component, want: Component) -> Difference | None:
    """The first element of output `name` that is defined on both sides and differs."""
    wrong = got.residues != want.residues
    for undefined in (got.undefined, want.undefined):
        if undefined is not None:
            wrong &= ~undefined
    if not bool(wrong.any()):
        return None
    index = _first(wrong)
    return Difference(name, index, float(got.residues[index]), float(want.residues[index]), f"modulo {PRIMES[0]}")


def compare_numbers(
    xp: Any, names: Sequence[str], got: Sequence[Array], wanted: Sequence[Array], tolerance: float, strict: bool
) -> tuple[float, Difference | None, bool]:
    """The largest error, the first beyond `tolerance`, and whether every output has elements that could be compared.

    Errors are relative to |wanted| + rms. Elements that are not finite in `wanted` are left out; with `strict`, those that are
    not finite in `got` alone are differences, else left out too.
    """
    worst, first, compared = 0.0, None, True
    with np.errstate(all="ignore"):
        for name, x, want in zip(names, got, wanted, strict=True):
            finite = xp.isfinite(want)
            size = xp.sqrt(xp.mean(xp.where(finite, want, 0) ** 2)) + xp.abs(want)
            error = xp.abs(x - want) / xp.where(size > 0, size, 1)
            given = xp.isfinite(x)
            compared &= bool((finite & given).any())
            error = xp.where(given, error, xp.inf if strict else 0.0)
            error = xp.where(finite, error, 0.0)
            worst = max(worst, float(error.max()))
            wrong = ~(error <= tolerance)
            if first is None and bool(wrong.any()):
                index = _first(wrong)
                first = Difference(name, index, float(x[index]), float(want[index]), "float64")
    return worst, first, compared


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
