"""The arithmetic of the finite field, and the semantics of each elementwise op in it, by its record. Trusted.

An op without a meaning in a field is a keyed random function of the value and of the op's attributes: only equal arguments
give equal results. Monotone ops (relu, clamp, tanh, log) are monotone in the keyed order of the maxima, too. A comparison is a
keyed random function to 0 and 1 of x − y, by their first component: an indicator is the same in every component, so that
ω^(m·x) is m·ω^x + 1 − m.

    k   component: 0, 1, 2 for p, q, r        ω   random element of order (prime − 1)/2, another in each trial
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.elementwise_kernels import one_pass
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES, Modulus, Number, modulus, residues
from mirage_eg.ir.definitions import primitive_nodes
from mirage_eg.ir.op.elementwise import elementwise_table
from mirage_eg.ir.op.record import SAME, ElementwiseOp, holds
from mirage_eg.ir.shapes import Attributes


class Component(NamedTuple):
    """Residues modulo one prime, and a mask of the undefined ones (after a division by zero; None: all are defined)."""

    residues: Array
    undefined: Array | None = None  # always None on CuPy, where undefined residues are not-a-number
    pending: bool = False  # on CuPy: a matrix product before its reduction modulo the prime


@dataclass(frozen=True, slots=True)
class Randomness:
    """The randomness of one trial, or of several stacked along a first dim: a function of seed, trial and a name.

    With `joins`, maxima and minima are keyed products, which are associative and commutative too but depend on all elements:
    equal results then imply reductions over equal elements. With `everywhere`, an index stands for a combination of all places.
    """

    seed: int
    trial: int | tuple[int, ...]
    xp: Any = np
    joins: bool = False
    everywhere: bool = False

    @property
    def trials(self) -> tuple[int, ...]:
        return (self.trial,) if isinstance(self.trial, int) else self.trial

    def modulus(self, k: int) -> Modulus:
        """Arithmetic of component k."""
        return modulus(PRIMES[k], self.xp)

    def keys(self, *name: object) -> list[int]:
        """64 random bits for a name, for each trial."""
        return [_key(self.seed, number, name) for number in self.trials]

    def generator(self, k: int, rank: int, factor: Fraction = Fraction(1)) -> Number:
        """The exponent t that makes ω = g^(2t) of component k, times an exact constant, for arrays of `rank`."""
        return _per_trial(self, k, rank, _exponent, factor)

    def order(self, k: int, rank: int) -> tuple[Number, Number]:
        """Factor and offset that key the total order of component k, for arrays of `rank`."""
        return _per_trial(self, k, rank, _of_order, 0), _per_trial(self, k, rank, _of_order, 1)

    def inverse_order(self, k: int, rank: int) -> tuple[Number, Number]:
        """Factor and offset of the inverse function."""
        return _per_trial(self, k, rank, _of_inverse, 0), _per_trial(self, k, rank, _of_inverse, 1)

    def offset(self, k: int, rank: int, below: int, *name: object) -> Number:
        """A random whole number 0 ≤ c < `below` for a name and component k, for arrays of `rank`."""
        return _per_trial(self, k, rank, _below, below, *name)

    def keyed(self, x: Array, k: int, *name: object, of: int | None = None) -> Array:
        """The random function `name` from the residues x of component `of` (default k) to residues of component k."""
        own = float(PRIMES[k if of is None else of])
        key = _per_trial(self, k, x.ndim, _named, *name)
        prime = float(PRIMES[k])
        return one_pass(self.xp, "keyed", lambda a, b: _scramble(a, b, PRIMES[k]), x, key, constants=(prime, own, 1 / own))


def _named(seed: int, number: int, k: int, *name: object) -> int:
    """The key of a keyed function."""
    return _key(seed, number, (k, *name))


def _below(seed: int, number: int, k: int, below: int, *name: object) -> int:
    """A whole number below a limit."""
    return _named(seed, number, k, *name) % below


def _exponent(seed: int, number: int, k: int, factor: Fraction) -> int:
    """1 ≤ t < (prime − 1)/2 at random, times a constant modulo (prime − 1)/2."""
    order = (PRIMES[k] - 1) // 2
    constant = rational(factor, order)
    assert constant is not None
    return (1 + _key(seed, number, ("omega", k)) % (order - 1)) * constant % order


@lru_cache(maxsize=1 << 10)
def _order(seed: int, number: int, k: int) -> tuple[int, int]:
    """Factor and offset of a random order in which 0 is below 1: the maximum of indicators is 1 where one of them is."""
    prime = PRIMES[k]
    factor = 1 + _key(seed, number, ("order factor", k)) % (prime - 1)
    offset = _key(seed, number, ("order offset", k)) % prime
    zero, one = modulus(prime, np).shuffled(np.arange(2.0), factor, offset)
    return (factor, offset) if zero < one else (prime - factor, (factor + offset) % prime)


def _of_order(seed: int, number: int, k: int, place: int) -> int:
    return _order(seed, number, k)[place]


def _of_inverse(seed: int, number: int, k: int, place: int) -> int:
    factor, offset = _order(seed, number, k)
    inverse = pow(factor, -1, PRIMES[k])
    return (inverse, -offset * inverse % PRIMES[k])[place]


@lru_cache(maxsize=1 << 12)
def _per_trial(random: Randomness, k: int, rank: int, function: Callable[..., int], *arguments: object) -> Number:
    """The number of a trial; for stacked trials an array of numbers, along the first of `rank` dims."""
    dtype = np.uint64 if function is _named else np.float64
    numbers = np.array([function(random.seed, number, k, *arguments) for number in random.trials], dtype)
    return numbers[0] if isinstance(random.trial, int) else random.xp.asarray(numbers.reshape(-1, *[1] * (rank - 1)))


@cache
def _key(seed: int, trial: int, name: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr((seed, trial, name)).encode(), digest_size=8).digest(), "little")


def _scramble(x: Array, key: Number, prime: int) -> Array:
    """Multiplications and shifts as in splitmix64, then 53 bits scaled to 0 … prime − 1."""
    bits = x.astype(np.uint64) + key
    for multiplier, shift in ((0x9E3779B97F4A7C15, 32), (0xBF58476D1CE4E5B9, 29), (0x94D049BB133111EB, 32)):
        bits = bits * np.uint64(multiplier)
        bits ^= bits >> np.uint64(shift)
    return np.floor((bits >> np.uint64(11)).astype(np.float64) * (prime * 2.0**-53))


def either(first: Array | None, second: Array | None) -> Array | None:
    """Undefined where at least one of the two is."""
    if first is None:
        return second
    return first if second is None else first | second


Compute = Callable[[Randomness, int, Attributes, Sequence[Component]], Component]


@dataclass(frozen=True, slots=True)
class FieldSemantics:
    """One op: `reads` lists pairs (operand, 0 for the same component, 1 for the next one, or None for the first one).

    `unfaithful` marks ops that satisfy other laws here than on numbers: keyed random functions; orders; roots (√x² is x or −x).
    """

    reads: tuple[tuple[int, int | None], ...]
    compute: Compute
    unfaithful: Callable[[Attributes], bool]


class FieldArithmetic(NamedTuple):
    """The functions of components that records of ops use (`ir.op.record.FieldMeaning`), for component k of an op."""

    random: Randomness
    k: int
    op: str

    @property
    def _modulus(self) -> Modulus:
        return self.random.modulus(self.k)

    def add(self, x: Component, y: Component) -> Component:
        return Component(self._modulus.add(x.residues, y.residues), _either_broadcast(x, y))

    def subtract(self, x: Component, y: Component) -> Component:
        return Component(self._modulus.subtract(x.residues, y.residues), _either_broadcast(x, y))

    def multiply(self, x: Component, y: Component) -> Component:
        undefined = x.undefined if x is y else _either_broadcast(x, y)
        return Component(self._modulus.multiply(x.residues, y.residues), undefined)

    def divide(self, x: Component, y: Component) -> Component:
        undefined = _either_broadcast(x, Component(y.residues, _no_inverse(self._modulus, y)))
        return Component(self._modulus.divide(x.residues, y.residues), undefined)

    def affine(self, x: Component, factor: Fraction | int, offset: Fraction | int) -> Component:
        return affine(self._modulus, x, Fraction(factor), Fraction(offset))

    def constant(self, x: Component, value: Fraction) -> Component:
        """A constant in the shape of x."""
        return affine(self._modulus, Component(self.random.xp.zeros(x.residues.shape)), Fraction(1), value)

    def root(self, x: Component) -> Component:
        """√x: one of the two, multiplicative."""
        return Component(self._modulus.root(x.residues), x.undefined)

    def inverse_root(self, x: Component) -> Component:
        """1 / √x."""
        return Component(self._modulus.inverse_root(x.residues), _no_inverse(self._modulus, x))

    def power(self, x: Component, exponent: Fraction) -> Component:
        """Whole exponents and ±½ are exact; any other exponent is a keyed random function."""
        modulus = self._modulus
        if exponent.denominator != 1 and abs(exponent) != Fraction(1, 2):
            return self.keyed(x, exponent=exponent)
        undefined = _no_inverse(modulus, x) if exponent < 0 else x.undefined
        if exponent.denominator == 2:
            return Component(modulus.inverse_root(x.residues) if exponent < 0 else modulus.root(x.residues), undefined)
        base = modulus.inverse(x.residues) if exponent < 0 else x.residues
        return Component(modulus.power(base, abs(int(exponent))), undefined)

    def exponential(self, exponent: Component) -> Component:
        """ω^exponent."""
        return scaled_exp(self.random, self.k, Fraction(1), exponent)

    def logistic(self, exponent: Component) -> Component:
        """1 / (1 + ω^(−exponent))."""
        return Component(self._modulus.logistic(exponent.residues, self._decay(exponent)), exponent.undefined)

    def silu(self, x: Component, exponent: Component) -> Component:
        """x / (1 + ω^(−exponent)) in one pass."""
        residues = self._modulus.silu(x.residues, exponent.residues, self._decay(exponent))
        return Component(residues, either(x.undefined, exponent.undefined))

    def _decay(self, exponent: Component) -> Number:
        return self.random.generator(self.k, exponent.residues.ndim, Fraction(-1))

    def larger(self, x: Component, y: Component) -> Component:
        """The larger of two under the keyed total order of the maxima."""
        return self._extreme(self.random.xp.maximum, x, y)

    def smaller(self, x: Component, y: Component) -> Component:
        """The smaller of two under that order."""
        return self._extreme(self.random.xp.minimum, x, y)

    def _extreme(self, choose: Callable[[Array, Array], Array], x: Component, y: Component) -> Component:
        random, modulus, rank = self.random, self._modulus, x.residues.ndim
        ranks = [modulus.shuffled(operand.residues, *random.order(self.k, rank)) for operand in (x, y)]
        rank_of_result = (ranks[0] + ranks[1]) % (modulus.prime - 1) if random.joins else choose(*ranks)
        return Component(modulus.unshuffled(rank_of_result, *random.inverse_order(self.k, rank)), _either_broadcast(x, y))

    def less(self, x: Component, y: Component) -> Component:
        """A random bit of x − y; 0 where it is 0. With `joins` any residue, which hides no operand."""
        return Component(self._is_less(x, y), _either_broadcast(x, y))

    def less_equal(self, x: Component, y: Component) -> Component:
        """Where y < x is 0."""
        return Component(1 - self._is_less(y, x), _either_broadcast(x, y))

    def equal(self, x: Component, y: Component) -> Component:
        """A random bit of x − y that is the same for y − x; 1 where it is 0."""
        first, xp = self.random.modulus(0), self.random.xp
        difference = first.subtract(x.residues, y.residues)
        bits = self._bits("equal", xp.minimum(difference, first.subtract(y.residues, x.residues)))
        return Component(xp.where(difference == 0, 1.0, bits), _either_broadcast(x, y))

    def _is_less(self, x: Component, y: Component) -> Array:
        difference = self.random.modulus(0).subtract(x.residues, y.residues)
        return self._bits("less", difference) * (difference != 0)

    def _bits(self, name: str, x: Array) -> Array:
        values = self.random.keyed(x, 0, name)
        return values if self.random.joins else values % 2

    def chosen(self, condition: Component, x: Component, y: Component) -> Component:
        """x where m is 1, y where m is 0, elsewhere m·x + (1 − m)·y; what is not chosen may be undefined."""
        modulus, xp, bits = self._modulus, self.random.xp, condition.residues
        difference = modulus.subtract(x.residues, y.residues)
        mixed = modulus.add(modulus.multiply(residues(bits + 0.0, modulus.prime), difference), y.residues)
        chosen = xp.where(bits == 1, x.residues, xp.where(bits == 0, y.residues, mixed))
        if condition.undefined is None and x.undefined is None and y.undefined is None:
            return Component(chosen)
        first, second = mask_of(x), mask_of(y)
        unchosen = np.where(bits == 1, first, np.where(bits == 0, second, first | second))
        return Component(chosen, np.broadcast_to(unchosen | mask_of(condition), chosen.shape))

    def keyed(self, *operands: Component, **attributes: Any) -> Component:
        """The random function of the op's name of the values of the operands, for an op without a meaning in a field."""
        key, k, (first, *others) = (self.op, *sorted(attributes.items())), self.k, operands
        result = Component(self.random.keyed(first.residues, k, *key), first.undefined)
        for operand in others:
            total = self._modulus.add(result.residues, operand.residues)
            result = Component(self.random.keyed(total, k, *key), _either_broadcast(result, operand))
        return result

    def monotone(self, x: Component, name: str = "", idempotent: bool = False, **attributes: Any) -> Component:
        """The random function `name`, of the op where not given, monotone in the order of the maxima: it commutes with them.

        An idempotent one maps x to the largest of its values that is not above x. (relu as the maximum with 0 would hide its
        operand: all of n values are below 0 once in 2^n trials, and otherwise relu(max(x)) is max(x).)
        """
        random, k, rank, key = self.random, self.k, x.residues.ndim, (name or self.op, *sorted(attributes.items()))
        modulus = self._modulus
        ranks = modulus.shuffled(x.residues, *random.order(k, rank))
        if idempotent:
            step, offset = _STEP + random.offset(k, rank, _STEP, *key), random.offset(k, rank, modulus.prime, "offset", *key)
            ranks = random.xp.maximum(ranks - (ranks + offset) % step, 0.0)
        else:
            ranks = random.xp.floor(ranks / 2) + random.offset(k, rank, modulus.prime // 2, *key)
        return Component(modulus.unshuffled(ranks, *random.inverse_order(k, rank)), x.undefined)


_STEP = 256  # least distance of two values of an idempotent function in the order


def _either_broadcast(x: Component, y: Component) -> Array | None:
    """The mask of a broadcast result of x and y."""
    if x.undefined is None and y.undefined is None:
        return None
    shape = np.broadcast_shapes(x.residues.shape, y.residues.shape)
    undefined = either(x.undefined, y.undefined)
    return None if undefined is None else np.broadcast_to(undefined, shape)


def mask_of(x: Component) -> Array:
    """The mask of the undefined elements."""
    return np.zeros(x.residues.shape, bool) if x.undefined is None else x.undefined


def _no_inverse(modulus: Modulus, x: Component) -> Array | None:
    """The mask of 1/x; on CuPy residues are not-a-number instead: reading a mask would wait for the device."""
    if modulus.xp is not np:
        return x.undefined
    zero = x.residues == 0
    return either(x.undefined, zero if bool(zero.any()) else None)


def scaled_exp(random: Randomness, k: int, factor: Fraction, exponent: Component) -> Component:
    """exp(factor · exponent) for a constant that exists modulo the prime of the exponent."""
    generator = random.generator(k, exponent.residues.ndim, factor)
    return Component(random.modulus(k).exponential(exponent.residues, generator), exponent.undefined)


def exists(value: Fraction) -> bool:
    """Whether an exact constant has a residue modulo every prime of the chain."""
    return all(value.denominator % prime for prime in PRIMES)


def rational(value: Fraction, prime: int) -> int | None:
    """The residue of an exact constant; None where `prime` divides its denominator."""
    if value.denominator % prime == 0:
        return None
    return value.numerator * pow(value.denominator, -1, prime) % prime


def affine(modulus: Modulus, x: Component, factor: Fraction, offset: Fraction) -> Component:
    """factor · x + offset for exact constants."""
    a, b = rational(factor, modulus.prime), rational(offset, modulus.prime)
    if a is None or b is None:
        if modulus.xp is not np:
            return Component(x.residues * np.nan)
        return Component(x.residues * 0, np.ones_like(x.residues, dtype=bool))
    return Component(modulus.affine(x.residues, a, b), x.undefined)


def _derived(op: ElementwiseOp) -> FieldSemantics:
    """The meaning in the record; an op with a definition is computed by it, and as faithful as its ops."""
    if op.definition is not None:
        return FieldSemantics((), _in_its_parts, lambda attributes: _is_unfaithful(op.name, attributes))
    reads = op.field.reads or tuple((place, SAME) for place in range(op.arity))
    compute, unfaithful = op.field.compute, op.field.unfaithful
    return FieldSemantics(
        reads,
        lambda random, k, attributes, operands: compute(FieldArithmetic(random, k, op.name), *operands, **attributes),
        lambda attributes: holds(attributes, unfaithful),
    )


def _in_its_parts(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    raise AssertionError("`FieldAlgebra.elementwise` computes an op with a definition in its parts")


def _is_unfaithful(op: str, attributes: Attributes) -> bool:
    return any(ELEMENTWISE[name].unfaithful(given) for name, given in primitive_nodes(op, attributes))


ELEMENTWISE = elementwise_table(_derived)
