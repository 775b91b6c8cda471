"""Arithmetic modulo the primes of the chain, on float64 arrays of NumPy or CuPy. Part of the trusted core.

Residues are whole numbers 0 ≤ x < prime kept in float64: sums and products of them are exact below 2^53, so a matrix product is
exact in BLAS as long as K · (prime − 1)² is, and longer ones are split.

    p = 1,037,087 = 2q + 1    q = 518,543 = 2r + 1    r = 259,271        (all prime, all ≡ 3 mod 4)
    K    contracted extent    g    the least primitive root of a prime
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import do_all, for_each_thread, raise_if_stopped
from mirage_eg.backends.evaluator.elementwise_kernels import (
    CHUNK_ELEMENTS,
    LONGEST_REDUCTION,
    in_chunks,
    kernel,
    one_pass,
    reduction,
)
from mirage_eg.backends.evaluator.matmul import product

PRIMES = (1_037_087, 518_543, 259_271)
_EXACT = 2**53
Number = Any  # an int, a float of NumPy, or an array with one number for each trial


def longest_product(prime: int) -> int:
    """The largest K for which a product of matrices modulo `prime` is exact in float64: 8374 for p."""
    return (_EXACT - 2 * prime) // (prime - 1) ** 2


def _floor(x: Array) -> Array:
    """The floor of x, in place but for a number that NumPy made of an array without dims."""
    return np.floor(x, out=x if x.ndim else None)


def residues(x: Array, prime: int) -> Array:
    """x modulo `prime`, in place, for whole numbers |x| < 2^48.

    The half keeps (x + ½)/prime at least ½/prime ≥ 4.8e-7 away from a whole number; the quotient is below 2^31 and wrong by
    less than 2^-21 (2^-24 for p), so its floor is right.
    """
    quotient = x + 0.5
    quotient *= 1.0 / prime
    quotient = _floor(quotient)
    quotient *= prime
    x -= quotient
    return x


def residues_of_sums(x: Array, prime: int) -> Array:
    """x modulo `prime`, in place, for whole numbers 0 ≤ x < 2^53 − 2 prime: the first quotient may be wrong by one."""
    quotient = x * (1.0 / prime)
    quotient = _floor(quotient)
    quotient *= prime
    x -= quotient
    return residues(x, prime)


@dataclass(frozen=True)
class Modulus:
    """One prime of the chain, with its tables (computed at first use, `prime` entries each, float32: exact below 2^24)."""

    prime: int
    xp: Any = np

    def multiply(self, x: Array, y: Array) -> Array:
        return self._one_pass("multiply", lambda a, b: residues(a * b, self.prime), x, y)

    def add(self, x: Array, y: Array) -> Array:
        return self._one_pass("add", lambda a, b: residues(a + b, self.prime), x, y)

    def subtract(self, x: Array, y: Array) -> Array:
        return self._one_pass("subtract", lambda a, b: residues(a - b, self.prime), x, y)

    def affine(self, x: Array, factor: Number, offset: Number) -> Array:
        """factor · x + offset, both already residues."""
        return self._one_pass("affine", lambda x, a, b: residues(x * a + b, self.prime), x, _number(factor), _number(offset))

    def divide(self, x: Array, y: Array) -> Array:
        """x / y; where y is 0 the result is 0, on CuPy not-a-number."""
        if self.xp is not np:
            return kernel(self.xp, "divide")(x, y, self._inverses, float(self.prime), 1.0 / self.prime)
        return self.multiply(x, self.inverse(y))  # y is often the smaller

    def total(self, x: Array, axes: tuple[int, ...], factor: int = 1) -> Array:
        """factor · the sum over `axes`, which stay with extent 1; exact up to 2^33 terms."""
        if self.xp is not np and _terms(x, axes) <= LONGEST_REDUCTION:
            return self._reduction("total", x, axes, factor)
        return self.reduced(x.sum(axis=axes, keepdims=True, dtype=np.float64), factor)

    def total_of_squares(self, x: Array, axes: tuple[int, ...], factor: int = 1) -> Array:
        """factor · the sum of x² over `axes`, which stay with extent 1."""
        terms = _terms(x, axes)
        if self.xp is not np and terms <= LONGEST_REDUCTION:
            return self._reduction("total_of_squares", x, axes, factor)
        if self.xp is np and terms <= longest_product(self.prime):
            return self.reduced(in_chunks(np.square, x).sum(axis=axes, keepdims=True), factor)
        return self.total(self.multiply(x, x), axes, factor)

    def product(self, x: Array, y: Array) -> tuple[Array, bool]:
        """x @ y for batches of matrices, also of narrow types, and whether the result needs a reduction modulo the prime.

        On CuPy all functions but `total` of many terms accept unreduced products.
        """
        if self.xp is not np and x.shape[-1] <= longest_product(self.prime):
            return product(self.xp, x, y, np.dtype(np.float64)), True
        return self.matmul(x, y), False

    def matmul(self, x: Array, y: Array) -> Array:
        """x @ y for batches of matrices, also of narrow types; K is split where one product would not be exact."""
        longest, count = longest_product(self.prime), x.shape[-1]
        result = None
        for start in range(0, count, longest):
            k = slice(start, start + longest)
            part = product(self.xp, x[..., k], y[..., k, :], np.dtype(np.float64), self.reduced)
            result = part if result is None else self.add(result, part)
        return result

    def inverse(self, x: Array) -> Array:
        """1 / x; for 0 it is 0, on CuPy not-a-number."""
        return self._looked_up(self._inverses, x)

    def inverse_root(self, x: Array) -> Array:
        """The root of 1 / x; for 0 it is 0, on CuPy not-a-number."""
        return self._looked_up(self._inverse_roots, x)

    def root(self, x: Array) -> Array:
        """x^((prime + 1) / 4): a square root of a square, multiplicative everywhere."""
        return self._looked_up(self._roots, x)

    def power(self, x: Array, exponent: int) -> Array:
        """x^exponent for a whole number; 0 for 0 (and 1 where the exponent is 0)."""
        if exponent == 0:
            return self.affine(x, 0, 1)  # undefined where x is
        order = self.prime - 1
        reduced = float(exponent % order)

        def compute(a: Array) -> Array:
            logarithm = residues(self._look_up(self._logarithms, a) * reduced, order)
            return self._look_up(self._powers, logarithm) * (a != 0)

        constants = (self._logarithms, self._powers, reduced, float(order), 1.0 / order)
        return self._one_pass("power", compute, x, constants=constants)

    def exponential(self, exponents: Array, generator: Number) -> Array:
        """ω^exponents, where ω = g^(2 · generator) has the next prime of the chain, (prime − 1)/2, as its order."""
        order = (self.prime - 1) // 2

        def compute(a: Array, factor: Array) -> Array:
            return self._look_up(self._powers, 2 * residues(a * factor, order))

        constants = (self._powers, float(order), 1.0 / order)
        return one_pass(self.xp, "exponential", compute, exponents, _number(generator), constants=constants)

    def logistic(self, exponents: Array, generator: Number) -> Array:
        """1 / (1 + ω^exponents), for ω as in `exponential`; never a division by zero: −1 is no square, powers of ω are."""
        order = (self.prime - 1) // 2

        def compute(a: Array, factor: Array) -> Array:
            power = self._look_up(self._powers, 2 * residues(a * factor, order))
            return self._look_up(self._inverses, power + 1)

        constants = (self._powers, self._inverses, float(order), 1.0 / order)
        return self._one_pass("logistic", compute, exponents, _number(generator), constants=constants)

    def silu(self, x: Array, exponents: Array, generator: Number) -> Array:
        """x · logistic(exponents)."""
        if self.xp is np:
            return self.multiply(x, self.logistic(exponents, generator))
        order = (self.prime - 1) // 2
        constants = (self._powers, self._inverses, float(order), 1.0 / order, float(self.prime), 1.0 / self.prime)
        return kernel(self.xp, "silu")(x, exponents, _number(generator), *constants)

    def shuffled(self, x: Array, factor: Number, offset: Number) -> Array:
        """A keyed permutation of the residues: the discrete logarithm of factor · x + offset (that of 0 is prime − 1)."""
        return self._looked_up(self._logarithms, self.affine(x, factor, offset))

    def unshuffled(self, x: Array, factor: Number, offset: Number) -> Array:
        """The inverse of `shuffled`, for factor and offset of the inverse of its affine function."""
        return self.affine(self._looked_up(self._powers, x), factor, offset)

    def reduced(self, x: Array, factor: int = 1) -> Array:
        """factor · x modulo the prime, for whole numbers 0 ≤ x < 2^53 − 2 prime; in place on NumPy."""
        if self.xp is not np:
            return kernel(self.xp, "sum")(x, float(factor), float(self.prime), 1.0 / self.prime)
        flat = x.reshape(-1)

        def reduce(starts: Sequence[int]) -> None:
            for start in starts:
                raise_if_stopped()
                piece = residues_of_sums(flat[start : start + CHUNK_ELEMENTS], self.prime)
                if factor != 1:
                    piece *= float(factor)
                    residues(piece, self.prime)

        do_all(reduce, for_each_thread(range(0, flat.size, CHUNK_ELEMENTS)))
        return flat.reshape(x.shape)

    def _reduction(self, name: str, x: Array, axes: tuple[int, ...], factor: int) -> Array:
        constants = (float(factor), float(self.prime), 1.0 / self.prime)
        return reduction(self.xp, name)(x, *constants, axis=axes, keepdims=True)

    def _one_pass(self, name: str, function: Callable[..., Array], *operands: Array, constants: tuple[Any, ...] = ()) -> Array:
        return one_pass(self.xp, name, function, *operands, constants=(*constants, float(self.prime), 1.0 / self.prime))

    def _looked_up(self, table: Array, x: Array) -> Array:
        return self._one_pass("look_up", lambda a: self._look_up(table, a), x, constants=(table,))

    def _look_up(self, table: Array, x: Array) -> Array:
        return table[x.astype(np.int64)].astype(np.float64)

    @cached_property
    def _exact_powers(self) -> Array:
        """g^k for 0 ≤ k < prime − 1, by doubling."""
        powers = np.ones(1)
        step = primitive_root(self.prime)
        while len(powers) < self.prime - 1:
            powers = np.concatenate([powers, residues(powers * float(step), self.prime)])
            step = step * step % self.prime
        return powers[: self.prime - 1]

    def _table(self, entries: Array) -> Array:
        return self.xp.asarray(entries.astype(np.float32))

    @cached_property
    def _powers(self) -> Array:
        return self._table(np.append(self._exact_powers, 0.0))

    @cached_property
    def _logarithms(self) -> Array:
        table = np.full(self.prime, self.prime - 1.0)
        table[self._exact_powers.astype(np.int64)] = np.arange(self.prime - 1)
        return self._table(table)

    @cached_property
    def _inverses(self) -> Array:
        table = np.full(self.prime, 0.0 if self.xp is np else np.nan)
        table[self._exact_powers.astype(np.int64)] = np.roll(self._exact_powers[::-1], 1)
        return self._table(table)

    @cached_property
    def _inverse_roots(self) -> Array:
        table = np.full(self.prime, 0.0 if self.xp is np else np.nan)
        places = self._exact_powers.astype(np.int64)
        table[places] = self._root_table[np.roll(places[::-1], 1)]
        return self._table(table)

    @cached_property
    def _roots(self) -> Array:
        return self._table(self._root_table)

    @cached_property
    def _root_table(self) -> Array:
        order = self.prime - 1
        table = np.zeros(self.prime)
        quarter = residues(np.arange(order) * float((self.prime + 1) // 4), order)
        table[self._exact_powers.astype(np.int64)] = self._exact_powers[quarter.astype(np.int64)]
        return table


def _terms(x: Array, axes: tuple[int, ...]) -> int:
    return prod(x.shape[axis] for axis in axes)


def _number(value: Number) -> Number:
    return np.float64(value) if isinstance(value, int) else value


@cache
def modulus(prime: int, xp: Any = np) -> Modulus:
    """The one Modulus of a prime and an array module: its tables are computed once."""
    return Modulus(prime, xp)


@cache
def primitive_root(prime: int) -> int:
    """The least g whose powers are all residues but 0."""
    factors = _prime_factors(prime - 1)
    return next(g for g in range(2, prime) if all(pow(g, (prime - 1) // factor, prime) != 1 for factor in factors))


def _prime_factors(number: int) -> list[int]:
    factors = []
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            factors.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors
