"""Arithmetic modulo the primes of the chain, on float64 arrays of NumPy or CuPy. Part of the trusted core.

Residues are whole numbers 0 ≤ x < prime kept in float64: sums and products of them are exact below 2^53, so a matrix product is
exact in BLAS as long as K · (prime − 1)² is, and longer ones are split.

    p = 1,037,087 = 2q + 1    q = 518,543 = 2r + 1    r = 259,271        (all prime, all ≡ 3 mod 4)
    K    contracted extent    g    the least primitive root of a prime
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.products import product as matrix_product

PRIMES = (1_037_087, 518_543, 259_271)
PIECE_ELEMENTS = 1 << 15  # so that the temporaries of a piece stay in the cache
_SMALL = 256  # two operands of so many elements make at most two pieces
_EXACT = 2**53


def longest_product(prime: int) -> int:
    """The largest K for which a product of matrices modulo `prime` is exact in float64: 8374 for p."""
    return (_EXACT - 2 * prime) // (prime - 1) ** 2


def residues(x: Array, prime: int) -> Array:
    """x modulo `prime`, in place, for whole numbers |x| < 2^48.

    The half keeps (x + ½)/prime at least ½/prime ≥ 4.8e-7 away from a whole number; the quotient is below 2^31 and wrong by
    less than 2^-21 (2^-24 for p), so its floor is right.
    """
    quotient = x + 0.5
    quotient *= 1.0 / prime
    np.floor(quotient, out=quotient)
    quotient *= prime
    x -= quotient
    return x


def residues_of_sums(x: Array, prime: int) -> Array:
    """x modulo `prime`, in place, for whole numbers 0 ≤ x < 2^53 − 2 prime: the first quotient may be wrong by one."""
    quotient = x * (1.0 / prime)
    np.floor(quotient, out=quotient)
    quotient *= prime
    x -= quotient
    return residues(x, prime)


def in_pieces(xp: Any, function: Callable[..., Array], *operands: Array) -> Array:
    """`function(*operands)` for an elementwise function, piece by piece where the result is large (NumPy only)."""
    if operands[0].ndim and all(x.size <= _SMALL for x in operands):
        return function(*operands)
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    if not shape:  # NumPy makes scalars of arrays without dims, which cannot be worked on in place
        return function(*(x.reshape(1) for x in operands)).reshape(())
    if xp is not np or prod(shape) <= 2 * PIECE_ELEMENTS:
        return function(*operands)
    # The first `axis` dims are walked one by one, dim `axis` in steps, the others whole.
    axis, inner = len(shape) - 1, 1
    while inner * shape[axis] <= PIECE_ELEMENTS:
        inner *= shape[axis]
        axis -= 1
    step = max(1, PIECE_ELEMENTS // inner)
    wide = [np.broadcast_to(x, shape) for x in operands]
    result = np.empty(shape)
    for outer in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            piece: Any = (*outer, slice(start, start + step))
            result[piece] = function(*(x[piece] for x in wide))
    return result


@dataclass(frozen=True)
class Modulus:
    """One prime of the chain, with its tables (made when first used, of `prime` entries each, float32: exact below 2^24)."""

    prime: int
    xp: Any = np

    def multiply(self, x: Array, y: Array) -> Array:
        """x · y."""
        return in_pieces(self.xp, lambda a, b: residues(a * b, self.prime), x, y)

    def add(self, x: Array, y: Array) -> Array:
        """x + y."""
        return in_pieces(self.xp, lambda a, b: residues(a + b, self.prime), x, y)

    def subtract(self, x: Array, y: Array) -> Array:
        """x − y."""
        return in_pieces(self.xp, lambda a, b: residues(a - b, self.prime), x, y)

    def affine(self, x: Array, factor: int, offset: int) -> Array:
        """factor · x + offset, both already residues."""
        return in_pieces(self.xp, lambda a: residues(a * float(factor) + float(offset), self.prime), x)

    def total(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The sum over `axes`, which stay with extent 1; exact up to 2^33 terms."""
        return self._reduced(x.sum(axis=axes, keepdims=True))

    def matmul(self, x: Array, y: Array) -> Array:
        """x @ y for stacks of matrices, also of narrow types, K split where one exact product cannot hold it."""
        longest, count = longest_product(self.prime), x.shape[-1]
        result = None
        for start in range(0, count, longest):
            k = slice(start, start + longest)
            part = self._reduced(matrix_product(self.xp, x[..., k], y[..., k, :], np.dtype(np.float64)))
            result = part if result is None else self.add(result, part)
        return result

    def inverse(self, x: Array) -> Array:
        """1 / x, and 0 for 0."""
        return self._looked_up(self._inverses, x)

    def root(self, x: Array) -> Array:
        """x^((prime + 1) / 4): a square root of a square, multiplicative everywhere."""
        return self._looked_up(self._roots, x)

    def power(self, x: Array, exponent: int) -> Array:
        """x^exponent for a whole number; 0 for 0 (and 1 where the exponent is 0)."""
        if exponent == 0:
            return self.xp.ones_like(x)
        order = self.prime - 1
        reduced = float(exponent % order)

        def compute(a: Array) -> Array:
            logarithm = residues(self._look_up(self._logarithms, a) * reduced, order)
            return self._look_up(self._powers, logarithm) * (a != 0)

        return in_pieces(self.xp, compute, x)

    def exponential(self, exponents: Array, generator: int) -> Array:
        """ω^exponents, where ω = g^(2 · generator) has the next prime of the chain, (prime − 1)/2, as its order."""
        order = (self.prime - 1) // 2

        def compute(a: Array) -> Array:
            return self._look_up(self._powers, 2 * residues(a * float(generator), order))

        return in_pieces(self.xp, compute, exponents)

    def shuffled(self, x: Array, factor: int, offset: int) -> Array:
        """A keyed permutation of the residues: the discrete logarithm of factor · x + offset (that of 0 is prime − 1)."""
        return self._looked_up(self._logarithms, self.affine(x, factor, offset))

    def unshuffled(self, x: Array, factor: int, offset: int) -> Array:
        """The inverse of `shuffled`."""
        inverse = pow(factor, -1, self.prime)
        return self.affine(self._looked_up(self._powers, x), inverse, -offset * inverse % self.prime)

    def _reduced(self, x: Array) -> Array:
        """x modulo the prime, in place; x was just made."""
        flat = x.reshape(-1)
        step = PIECE_ELEMENTS if self.xp is np else max(1, flat.size)
        for start in range(0, flat.size, step):
            residues_of_sums(flat[start : start + step], self.prime)
        return flat.reshape(x.shape)

    def _looked_up(self, table: Array, x: Array) -> Array:
        return in_pieces(self.xp, lambda a: self._look_up(table, a), x)

    def _look_up(self, table: Array, x: Array) -> Array:
        return table[x.astype(self.xp.int64)].astype(self.xp.float64)

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
        table = np.zeros(self.prime)
        table[self._exact_powers.astype(np.int64)] = np.roll(self._exact_powers[::-1], 1)
        return self._table(table)

    @cached_property
    def _roots(self) -> Array:
        order = self.prime - 1
        table = np.zeros(self.prime)
        quarter = residues(np.arange(order) * float((self.prime + 1) // 4), order)
        table[self._exact_powers.astype(np.int64)] = self._exact_powers[quarter.astype(np.int64)]
        return self._table(table)


@cache
def modulus(prime: int, xp: Any = np) -> Modulus:
    """The one Modulus of a prime and an array module, so that tables are made once."""
    return Modulus(prime, xp)


@cache
def primitive_root(prime: int) -> int:
    """The least g whose powers are all residues but 0."""
    factors = _prime_factors(prime - 1)
    return next(g for g in range(2, prime) if all(pow(g, (prime - 1) // factor, prime) != 1 for factor in factors))


def _prime_factors(number: int) -> list[int]:
    factors = []
    divisor = 2
    while number > 1:
        if number % divisor == 0:
            factors.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return factors
