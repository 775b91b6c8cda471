"""The semantics of each elementwise op in the finite field: one row each. Trusted.

A row has the components of the operands that component k of the result reads, and the function. An op without a meaning in a
field is a keyed random function of the value and of the op's attributes: only equal arguments give equal results. Monotone ops
(relu, clamp, tanh, log) are monotone in the keyed order of the maxima, too. A comparison is a keyed random function to 0 and 1
of x − y, by their first component: an indicator is the same in every component, so that ω^(m·x) is m·ω^x + 1 − m.

    k   component: 0, 1, 2 for p, q, r        ω   random element of order (prime − 1)/2, another in each trial
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.elementwise_kernels import one_pass
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES, Modulus, Number, modulus, residues
from mirage_eg.ir.custom_ops import OpSpec, OpTable
from mirage_eg.ir.definitions import primitive_nodes
from mirage_eg.ir.ops import Attributes


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
        """The trials."""
        return (self.trial,) if isinstance(self.trial, int) else self.trial

    def modulus(self, k: int) -> Modulus:
        """Arithmetic of component k."""
        return modulus(PRIMES[k], self.xp)

    def keys(self, *name: object) -> list[int]:
        """64 random bits for a name, for each trial."""
        return [_key(self.seed, number, name) for number in self.trials]

    def generator(self, k: int, rank: int, factor: Fraction = Fraction(1)) -> Number:
        """The exponent t that makes ω = g^(2t) of component k, times an exact constant, for arrays of `rank`."""
        return _per_trial(self, _Generator(factor), k, rank)

    def order(self, k: int, rank: int) -> tuple[Number, Number]:
        """Factor and offset that key the total order of component k, for arrays of `rank`."""
        return _per_trial(self, _order_factor, k, rank), _per_trial(self, _order_offset, k, rank)

    def inverse_order(self, k: int, rank: int) -> tuple[Number, Number]:
        """Factor and offset of the inverse function."""
        return _per_trial(self, _inverse_factor, k, rank), _per_trial(self, _inverse_offset, k, rank)

    def offset(self, k: int, rank: int, below: int, *name: object) -> Number:
        """A random whole number 0 ≤ c < `below` for a name and component k, for arrays of `rank`."""
        return _per_trial(self, _Offset(name, below), k, rank)

    def keyed(self, x: Array, k: int, *name: object, of: int | None = None) -> Array:
        """The random function `name` from the residues x of component `of` (default k) to residues of component k."""
        own = float(PRIMES[k if of is None else of])
        key = _per_trial(self, _Named(name), k, x.ndim)
        prime = float(PRIMES[k])
        return one_pass(self.xp, "keyed", lambda a, b: _scramble(a, b, PRIMES[k]), x, key, constants=(prime, own, 1 / own))


@dataclass(frozen=True, slots=True)
class _Named:
    """The key of a keyed function."""

    name: tuple[object, ...]

    def __call__(self, seed: int, number: int, k: int) -> int:
        return _key(seed, number, (k, *self.name))


@dataclass(frozen=True, slots=True)
class _Offset:
    """A whole number below a limit."""

    name: tuple[object, ...]
    below: int

    def __call__(self, seed: int, number: int, k: int) -> int:
        return _key(seed, number, (k, *self.name)) % self.below


@dataclass(frozen=True, slots=True)
class _Generator:
    """1 ≤ t < (prime − 1)/2 at random, times a constant modulo (prime − 1)/2."""

    factor: Fraction

    def __call__(self, seed: int, number: int, k: int) -> int:
        order = (PRIMES[k] - 1) // 2
        factor = rational(self.factor, order)
        assert factor is not None
        return (1 + _key(seed, number, ("omega", k)) % (order - 1)) * factor % order


@lru_cache(maxsize=1 << 10)
def _order(seed: int, number: int, k: int) -> tuple[int, int]:
    """Factor and offset of a random order in which 0 is below 1: the maximum of indicators is 1 where one of them is."""
    prime = PRIMES[k]
    factor = 1 + _key(seed, number, ("order factor", k)) % (prime - 1)
    offset = _key(seed, number, ("order offset", k)) % prime
    zero, one = modulus(prime, np).shuffled(np.arange(2.0), factor, offset)
    return (factor, offset) if zero < one else (prime - factor, (factor + offset) % prime)


def _order_factor(seed: int, number: int, k: int) -> int:
    return _order(seed, number, k)[0]


def _order_offset(seed: int, number: int, k: int) -> int:
    return _order(seed, number, k)[1]


def _inverse_factor(seed: int, number: int, k: int) -> int:
    return pow(_order_factor(seed, number, k), -1, PRIMES[k])


def _inverse_offset(seed: int, number: int, k: int) -> int:
    return -_order_offset(seed, number, k) * _inverse_factor(seed, number, k) % PRIMES[k]


@lru_cache(maxsize=1 << 12)
def _per_trial(random: Randomness, function: Callable[[int, int, int], int], k: int, rank: int) -> Number:
    """The number of a trial; for stacked trials an array of numbers, along the first of `rank` dims."""
    dtype = np.uint64 if isinstance(function, _Named) else np.float64
    numbers = np.array([function(random.seed, number, k) for number in random.trials], dtype)
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
    unfaithful: Callable[[Attributes], bool] = lambda attributes: False


def _binary(function: Callable[[Modulus, Array, Array], Array]) -> FieldSemantics:
    def compute(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        x, y = operands
        return Component(function(random.modulus(k), x.residues, y.residues), _either_broadcast(x, y))

    return FieldSemantics(((0, 0), (1, 0)), compute)


def _either_broadcast(x: Component, y: Component) -> Array | None:
    """The mask of a broadcast result of x and y."""
    if x.undefined is None and y.undefined is None:
        return None
    shape = np.broadcast_shapes(x.residues.shape, y.residues.shape)
    undefined = either(x.undefined, y.undefined)
    return None if undefined is None else np.broadcast_to(undefined, shape)


def _extreme(largest: bool) -> FieldSemantics:
    """The larger or the smaller of two under the keyed total order of the maxima."""

    def compute(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        x, y = operands
        modulus, rank = random.modulus(k), x.residues.ndim
        ranks = [modulus.shuffled(operand.residues, *random.order(k, rank)) for operand in operands]
        if random.joins:
            rank_of_result = (ranks[0] + ranks[1]) % (modulus.prime - 1)
        else:
            rank_of_result = (random.xp.maximum if largest else random.xp.minimum)(*ranks)
        return Component(modulus.unshuffled(rank_of_result, *random.inverse_order(k, rank)), _either_broadcast(x, y))

    return FieldSemantics(((0, 0), (1, 0)), compute, _always)


def _compared(bit: Callable[[Randomness, Array, Array], Array]) -> FieldSemantics:
    """The indicator `bit` of the first components of x − y and y − x; with `joins` any residue, which hides no operand."""

    def compute(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        x, y = operands
        modulus = random.modulus(0)
        differences = modulus.subtract(x.residues, y.residues), modulus.subtract(y.residues, x.residues)
        return Component(bit(random, *differences), _either_broadcast(x, y))

    return FieldSemantics(((0, None), (1, None)), compute, _always)


def _less(random: Randomness, difference: Array, opposite: Array) -> Array:
    """A random bit of x − y; 0 where it is 0."""
    return _bits(random, "less", difference) * (difference != 0)


def _less_equal(random: Randomness, difference: Array, opposite: Array) -> Array:
    """Where y < x is 0."""
    return 1 - _less(random, opposite, difference)


def _equal(random: Randomness, difference: Array, opposite: Array) -> Array:
    """A random bit of x − y that is the same for y − x; 1 where it is 0."""
    bits = _bits(random, "equal", random.xp.minimum(difference, opposite))
    return random.xp.where(difference == 0, 1.0, bits)


def _bits(random: Randomness, name: str, x: Array) -> Array:
    values = random.keyed(x, 0, name)
    return values if random.joins else values % 2


def _where(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """x where m is 1, y where m is 0, elsewhere m·x + (1 − m)·y; what is not chosen may be undefined."""
    condition, x, y = operands
    modulus, xp, bits = random.modulus(k), random.xp, condition.residues
    difference = modulus.subtract(x.residues, y.residues)
    mixed = modulus.add(modulus.multiply(residues(bits + 0.0, modulus.prime), difference), y.residues)
    chosen = xp.where(bits == 1, x.residues, xp.where(bits == 0, y.residues, mixed))
    if condition.undefined is None and x.undefined is None and y.undefined is None:
        return Component(chosen)
    first, second = _mask_of(x), _mask_of(y)
    unchosen = np.where(bits == 1, first, np.where(bits == 0, second, first | second))
    return Component(chosen, np.broadcast_to(unchosen | _mask_of(condition), chosen.shape))


def _mask_of(x: Component) -> Array:
    """The mask of the undefined elements."""
    return np.zeros(x.residues.shape, bool) if x.undefined is None else x.undefined


def _fill(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """A constant; of the operand it has the shape alone."""
    shape = operands[0].residues.shape
    return affine(random.modulus(k), Component(random.xp.zeros(shape)), Fraction(1), attributes["value"])


def _cast(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """The field does not round."""
    return operands[0]


def _abs(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """The root of the square: x or −x, equal for both, and multiplicative."""
    [x], modulus = operands, random.modulus(k)
    return Component(modulus.root(modulus.multiply(x.residues, x.residues)), x.undefined)


def _square(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    [x] = operands
    return Component(random.modulus(k).multiply(x.residues, x.residues), x.undefined)


def _always(attributes: Attributes) -> bool:
    return True


def keyed(name: str, arity: int = 1) -> FieldSemantics:
    """The random function `name` of the values of the operands, for an op without a meaning in a field."""

    def compute(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        key = (name, *sorted(attributes.items()))
        result = Component(random.keyed(operands[0].residues, k, *key), operands[0].undefined)
        for operand in operands[1:]:
            total = random.modulus(k).add(result.residues, operand.residues)
            result = Component(random.keyed(total, k, *key), _either_broadcast(result, operand))
        return result

    return FieldSemantics(tuple((place, 0) for place in range(arity)), compute, _always)


_STEP = 256  # least distance of two values of relu in the order


def monotone(name: str, idempotent: bool = False) -> FieldSemantics:
    """The random function `name`, monotone in the order of the maxima, so that it commutes with them.

    An idempotent one maps x to the largest of its values that is not above x. (relu as the maximum with 0 would hide its
    operand: all of n values are below 0 once in 2^n trials, and otherwise relu(max(x)) is max(x).)
    """

    def compute(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        [x] = operands
        modulus, rank, key = random.modulus(k), x.residues.ndim, (name, *sorted(attributes.items()))
        ranks = modulus.shuffled(x.residues, *random.order(k, rank))
        if idempotent:
            step, offset = _STEP + random.offset(k, rank, _STEP, *key), random.offset(k, rank, modulus.prime, "offset", *key)
            ranks = random.xp.maximum(ranks - (ranks + offset) % step, 0.0)
        else:
            ranks = random.xp.floor(ranks / 2) + random.offset(k, rank, modulus.prime // 2, *key)
        return Component(modulus.unshuffled(ranks, *random.inverse_order(k, rank)), x.undefined)

    return FieldSemantics(((0, 0),), compute, _always)


def _no_inverse(modulus: Modulus, x: Component) -> Array | None:
    """The mask of 1/x; on CuPy residues are not-a-number instead: reading a mask would wait for the device."""
    if modulus.xp is not np:
        return x.undefined
    zero = x.residues == 0
    return either(x.undefined, zero if bool(zero.any()) else None)


def _divide(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    [x, y], modulus = operands, random.modulus(k)
    undefined = _either_broadcast(x, Component(y.residues, _no_inverse(modulus, y)))
    return Component(modulus.divide(x.residues, y.residues), undefined)


def _sqrt(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return Component(random.modulus(k).root(operands[0].residues), operands[0].undefined)


def _rsqrt(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    modulus = random.modulus(k)
    return Component(modulus.inverse_root(operands[0].residues), _no_inverse(modulus, operands[0]))


def _exp(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return scaled_exp(random, k, Fraction(1), operands[0])


def scaled_exp(random: Randomness, k: int, factor: Fraction, exponent: Component) -> Component:
    """exp(factor · exponent) for a constant that exists modulo the prime of the exponent."""
    generator = random.generator(k, exponent.residues.ndim, factor)
    return Component(random.modulus(k).exponential(exponent.residues, generator), exponent.undefined)


def _sigmoid(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """1 / (1 + ω^(−x))."""
    [exponent] = operands
    generator = random.generator(k, exponent.residues.ndim, Fraction(-1))
    return Component(random.modulus(k).logistic(exponent.residues, generator), exponent.undefined)


def _silu(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    x, exponent = operands
    generator = random.generator(k, exponent.residues.ndim, Fraction(-1))
    residues = random.modulus(k).silu(x.residues, exponent.residues, generator)
    return Component(residues, either(x.undefined, exponent.undefined))


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


def _scale(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return affine(random.modulus(k), operands[0], attributes["factor"], Fraction(0))


def _shift(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return affine(random.modulus(k), operands[0], Fraction(1), attributes["offset"])


def _is_no_whole_power(attributes: Attributes) -> bool:
    exponent: Fraction = attributes["exponent"]
    return exponent.denominator != 1


def _pow(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """Whole exponents and ±½ are exact; any other exponent is a keyed random function."""
    [x] = operands
    modulus, exponent = random.modulus(k), attributes["exponent"]
    if _is_no_whole_power(attributes) and abs(exponent) != Fraction(1, 2):
        return Component(random.keyed(x.residues, k, "pow", exponent), x.undefined)
    undefined = _no_inverse(modulus, x) if exponent < 0 else x.undefined
    if exponent.denominator == 2:
        return Component(modulus.inverse_root(x.residues) if exponent < 0 else modulus.root(x.residues), undefined)
    base = modulus.inverse(x.residues) if exponent < 0 else x.residues
    return Component(modulus.power(base, abs(int(exponent))), undefined)


_LOG = monotone("log")


def _logarithm(offset: int, factor: float) -> FieldSemantics:
    """factor · log(x + offset)."""

    def compute(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        moved = affine(random.modulus(k), operands[0], Fraction(1), Fraction(offset))
        return affine(random.modulus(k), _LOG.compute(random, k, attributes, [moved]), Fraction(factor), Fraction(0))

    return FieldSemantics(_LOG.reads, compute, _always)


def _expm1(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return affine(random.modulus(k), _exp(random, k, attributes, operands), Fraction(1), Fraction(-1))


# One row for each elementwise op; a test holds the keys equal to the op table's.
_PACKAGED: Mapping[str, FieldSemantics] = {
    "add": _binary(Modulus.add),
    "sub": _binary(Modulus.subtract),
    "mul": _binary(Modulus.multiply),
    "div": FieldSemantics(((0, 0), (1, 0)), _divide),
    "maximum": _extreme(largest=True),
    "minimum": _extreme(largest=False),
    "abs": FieldSemantics(((0, 0),), _abs, _always),
    "less": _compared(_less),
    "less_equal": _compared(_less_equal),
    "equal": _compared(_equal),
    "where": FieldSemantics(((0, 0), (1, 0), (2, 0)), _where),
    "cast": FieldSemantics(((0, 0),), _cast),
    "exp": FieldSemantics(((0, 1),), _exp),
    "log": _LOG,
    "log2": _logarithm(0, 1 / math.log(2)),
    "log10": _logarithm(0, 1 / math.log(10)),
    "log1p": _logarithm(1, 1),
    "expm1": FieldSemantics(((0, 1),), _expm1),
    "square": FieldSemantics(((0, 0),), _square),
    "sqrt": FieldSemantics(((0, 0),), _sqrt, _always),
    "rsqrt": FieldSemantics(((0, 0),), _rsqrt, _always),
    "silu": FieldSemantics(((0, 0), (0, 1)), _silu),
    "sigmoid": FieldSemantics(((0, 1),), _sigmoid),
    "gelu": keyed("gelu"),
    "relu": monotone("relu", idempotent=True),
    "tanh": monotone("tanh"),
    "gelu_tanh": keyed("gelu_tanh"),
    "erf": monotone("erf"),
    "sin": keyed("sin"),
    "cos": keyed("cos"),
    "softplus": monotone("softplus"),
    "mish": keyed("mish"),
    "leaky_relu": keyed("leaky_relu"),
    "elu": keyed("elu"),
    "pow": FieldSemantics(((0, 0),), _pow, _is_no_whole_power),
    "clamp": monotone("clamp", idempotent=True),
    "scale": FieldSemantics(((0, 0),), _scale),
    "shift": FieldSemantics(((0, 0),), _shift),
    "fill": FieldSemantics(((0, None),), _fill),
}


def _custom(spec: OpSpec) -> FieldSemantics:
    """A keyed random function; an op with a definition is computed by it, and as faithful as its ops."""
    if spec.definition is None:
        return keyed(spec.name, spec.arity)
    return FieldSemantics((), _in_its_parts, lambda attributes: _is_unfaithful(spec.name, attributes))


def _in_its_parts(random: Randomness, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    raise AssertionError("the evaluator computes an op with a definition in its parts")


def _is_unfaithful(op: str, attributes: Attributes) -> bool:
    return any(ELEMENTWISE[name].unfaithful(given) for name, given in primitive_nodes(op, attributes))


ELEMENTWISE = OpTable(_PACKAGED, _custom)
