"""Fused elementwise arithmetic of the field: NumPy in chunks that stay in the cache, on all cores; CuPy in one kernel. Trusted.

A function has two forms: CuPy's here, NumPy's at the caller. Tests compare them on a GPU and, compiled as C++, without one. On
CuPy not-a-number is the undefined residue.

    p   a prime or another modulus        r   1 / p, as float64
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import do_all, for_each_thread, keep_step_with, raise_if_stopped

CHUNK_ELEMENTS = 1 << 15  # the temporaries of a chunk stay in the cache
_SMALL = 256  # two operands of so many elements give at most two chunks


class CupyKernel(NamedTuple):
    """Parameters (CuPy's notation; capital types are any) and the value, in C++."""

    parameters: str
    value: str


class CupyReduction(NamedTuple):
    """Parameters, the term of one element, and the value from the sum `a` of the terms."""

    parameters: str
    term: str
    value: str


# |x| < 2^48, and 0 ≤ x < 2^53 − 2p for sums: see `modular.residues` and `modular.residues_of_sums`. Whole numbers below 2^53
# are exact, so that a fused multiply-add changes nothing.
PREAMBLE = """
__device__ double residue(double x, double p, double r) { return x - floor((x + 0.5) * r) * p; }
__device__ double residue_of_sum(double x, double p, double r) { return residue(x - floor(x * r) * p, p, r); }
__device__ double scramble(unsigned long long bits, double prime) {
    bits *= 0x9E3779B97F4A7C15ULL; bits ^= bits >> 32;
    bits *= 0xBF58476D1CE4E5B9ULL; bits ^= bits >> 29;
    bits *= 0x94D049BB133111EBULL; bits ^= bits >> 32;
    return floor((double)(bits >> 11) * (prime * 1.1102230246251565e-16));
}
"""

# The operands of every kernel are residues, or matrix products before reduction; X and Y are their residues.
_X, _Y = "residue_of_sum((double)x, p, r)", "residue_of_sum((double)y, p, r)"
# ω^x, and 1 / (1 + ω^x): ω has order m, which is the modulus of x; s is 1 / m.
_POWER = "(double)powers[2 * (long long)residue(residue_of_sum((double)x, m, s) * generator, m, s)]"
_LOGISTIC = f"(double)inverses[(long long)residue({_POWER} + 1, p, r)]"
_TABLES = "raw float32 powers, raw float32 inverses, float64 m, float64 s, float64 p, float64 r"

KERNELS: Mapping[str, CupyKernel] = {
    "multiply": CupyKernel("T x, U y, float64 p, float64 r", f"residue({_X} * {_Y}, p, r)"),
    "add": CupyKernel("T x, U y, float64 p, float64 r", f"residue({_X} + {_Y}, p, r)"),
    "subtract": CupyKernel("T x, U y, float64 p, float64 r", f"residue({_X} - {_Y}, p, r)"),
    "affine": CupyKernel("T x, float64 factor, float64 offset, float64 p, float64 r", f"residue({_X} * factor + offset, p, r)"),
    "divide": CupyKernel(
        "T x, U y, raw float32 inverses, float64 p, float64 r",
        f"y == y ? residue({_X} * (double)inverses[(long long){_Y}], p, r) : (double)y",
    ),
    "sum": CupyKernel("T x, float64 factor, float64 p, float64 r", f"residue({_X} * factor, p, r)"),
    "look_up": CupyKernel(
        "T x, raw float32 table, float64 p, float64 r", f"x == x ? (double)table[(long long){_X}] : (double)x"
    ),
    "power": CupyKernel(
        "T x, raw float32 logarithms, raw float32 powers, float64 exponent, float64 m, float64 s, float64 p, float64 r",
        f"{_X} == 0 ? 0.0 : x == x ? (double)powers[(long long)residue((double)logarithms[(long long){_X}] * exponent, m, s)]"
        " : (double)x",
    ),
    "exponential": CupyKernel(
        "T x, float64 generator, raw float32 powers, float64 m, float64 s", f"x == x ? {_POWER} : (double)x"
    ),
    "logistic": CupyKernel(f"T x, float64 generator, {_TABLES}", f"x == x ? {_LOGISTIC} : (double)x"),
    "silu": CupyKernel(f"U y, T x, float64 generator, {_TABLES}", f"x == x ? residue({_Y} * {_LOGISTIC}, p, r) : (double)x"),
    "keyed": CupyKernel(
        "T x, uint64 key, float64 prime, float64 p, float64 r",
        f"x == x ? scramble((unsigned long long){_X} + key, prime) : (double)x",
    ),
    "mismatch": CupyKernel("T x, U y", "x == y ? 0.0 : 1.0"),  # undefined residues (not-a-number) differ too
    # -1: not compared. Infinity: finite in `want` only.
    "error": CupyKernel(
        "T x, U want, float64 size",
        "!isfinite((double)want) ? -1.0 : isfinite((double)x) ? fabs((double)x - (double)want) / size : 1.0 / 0.0",
    ),
}

_TOTAL = "residue(residue_of_sum(a, p, r) * factor, p, r)"

REDUCTIONS: Mapping[str, CupyReduction] = {
    "total": CupyReduction("T x, float64 factor, float64 p, float64 r", _X, _TOTAL),
    "total_of_squares": CupyReduction("T x, float64 factor, float64 p, float64 r", f"residue({_X} * {_X}, p, r)", _TOTAL),
    "mean": CupyReduction("T x, float64 count", "(double)x", "a / count"),  # of numbers
}
LONGEST_REDUCTION = 1 << 14  # terms of one sum, which one block of threads computes


def one_pass(xp: Any, name: str, function: Callable[..., Array], *operands: Array, constants: tuple[Any, ...]) -> Array:
    """`function(*operands)`, or on CuPy the kernel `name` on operands and constants."""
    if xp is np:
        return in_chunks(function, *operands)
    keep_step_with(xp)
    return kernel(xp, name)(*operands, *constants)


@cache
def kernel(xp: Any, name: str) -> Any:
    """The elementwise kernel `name` of CuPy."""
    row = KERNELS[name]
    return xp.ElementwiseKernel(row.parameters, "float64 result", f"result = {row.value}", f"mirage_{name}", preamble=PREAMBLE)


@cache
def reduction(xp: Any, name: str) -> Any:
    """The reduction `name` of CuPy, which takes `axis` and `keepdims`."""
    row = REDUCTIONS[name]
    return xp.ReductionKernel(
        row.parameters, "float64 result", row.term, "a + b", f"result = {row.value}", "0", f"mirage_{name}", preamble=PREAMBLE
    )


def in_chunks(function: Callable[..., Array], *operands: Array, dtype: Any = np.float64) -> Array:
    """`function(*operands)`, an elementwise function of NumPy arrays to `dtype`, chunk by chunk if the result is large."""
    if operands[0].ndim and all(x.size <= _SMALL for x in operands):
        return function(*operands)
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    if not shape:  # NumPy returns scalars for arrays without dims, which allow no work in place
        return function(*(x.reshape(1) for x in operands)).reshape(())
    if prod(shape) <= 2 * CHUNK_ELEMENTS:
        return function(*operands)
    # A chunk has one index of each of the first `axis` dims, `step` indices of dim `axis`, and all of the others.
    axis, inner = len(shape) - 1, 1
    while inner * shape[axis] <= CHUNK_ELEMENTS:
        inner *= shape[axis]
        axis -= 1
    step = max(1, CHUNK_ELEMENTS // inner)
    wide = [np.broadcast_to(x, shape) for x in operands]
    result = np.empty(shape, dtype)
    outers = product(*map(range, shape[:axis]))
    chunks = [(*outer, slice(start, start + step)) for outer in outers for start in range(0, shape[axis], step)]

    def fill(part: Sequence[Any]) -> None:
        for chunk in part:
            raise_if_stopped()
            result[chunk] = function(*(x[chunk] for x in wide))

    do_all(fill, for_each_thread(chunks))
    return result
