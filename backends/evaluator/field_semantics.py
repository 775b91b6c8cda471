"""What each elementwise op means in the finite field: one row each. Part of the trusted core.

A row says which components of its operands component k of the result reads, and how. Ops that mean nothing in a field are
keyed random functions of the value and of their parameters: equal arguments agree, nothing else does. Those that grow with
their argument (relu, clamp, tanh, log) grow in the keyed order of the maxima too.

    k   component: 0, 1, 2 for p, q, r        ω   element of order (prime − 1)/2, drawn anew for each draw
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.elementwise_kernels import one_pass
from mirage_eg.backends.evaluator.modular import PRIMES, Modulus, Number, modulus
from mirage_eg.ir.custom_ops import OpTable
from mirage_eg.ir.ops import Attributes


class Component(NamedTuple):
    """Residues modulo one prime, and where they are undefined (a division by zero lies behind them; None: nowhere)."""

    residues: Array
    undefined: Array | None = None  # on CuPy None, and not-a-number instead
    pending: bool = False  # on CuPy: a product of matrices that is still to be reduced


@dataclass(frozen=True, slots=True)
class Draw:
    """One random draw, or several that are stacked along a first dim: all that is random is a function of a draw and a name.

    With `joins`, maxima and minima are read as keyed products, which are as associative and commutative but depend on all
    elements: what agrees looks at the same ones.
    """

    seed: int
    draw: int | tuple[int, ...]
    xp: Any = np
    joins: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        """The draws."""
        return (self.draw,) if isinstance(self.draw, int) else self.draw

    def modulus(self, k: int) -> Modulus:
        """Arithmetic of component k."""
        return modulus(PRIMES[k], self.xp)

    def keys(self, *name: object) -> list[int]:
        """64 random bits that belong to a name, for each draw."""
        return [_key(self.seed, number, name) for number in self.numbers]

    def generator(self, k: int, rank: int, factor: Fraction = Fraction(1)) -> Number:
        """The exponent t that makes ω = g^(2t) of component k, times an exact constant, for arrays of `rank`."""
        return _spread(self, _Generator(factor), k, rank)

    def order(self, k: int, rank: int) -> tuple[Number, Number]:
        """Factor and offset that key the total order of component k, for arrays of `rank`."""
        return _spread(self, _order_factor, k, rank), _spread(self, _order_offset, k, rank)

    def inverse_order(self, k: int, rank: int) -> tuple[Number, Number]:
        """Factor and offset of the inverse function."""
        return _spread(self, _inverse_factor, k, rank), _spread(self, _inverse_offset, k, rank)

    def offset(self, k: int, rank: int, below: int, *name: object) -> Number:
        """A random whole number 0 ≤ c < `below` that belongs to a name and component k, for arrays of `rank`."""
        return _spread(self, _Offset(name, below), k, rank)

    def keyed(self, x: Array, k: int, *name: object, of: int | None = None) -> Array:
        """A random function, called `name`, of the residues x of component `of` (k, unless said) to those of component k."""
        own = float(PRIMES[k if of is None else of])
        key = _spread(self, _Named(name), k, x.ndim)
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


def _order_factor(seed: int, number: int, k: int) -> int:
    return 1 + _key(seed, number, ("order factor", k)) % (PRIMES[k] - 1)


def _order_offset(seed: int, number: int, k: int) -> int:
    return _key(seed, number, ("order offset", k)) % PRIMES[k]


def _inverse_factor(seed: int, number: int, k: int) -> int:
    return pow(_order_factor(seed, number, k), -1, PRIMES[k])


def _inverse_offset(seed: int, number: int, k: int) -> int:
    return -_order_offset(seed, number, k) * _inverse_factor(seed, number, k) % PRIMES[k]


@lru_cache(maxsize=1 << 12)
def _spread(draw: Draw, function: Callable[[int, int, int], int], k: int, rank: int) -> Number:
    """The number of a draw; of stacked draws an array of them, along the first of `rank` dims."""
    dtype = np.uint64 if isinstance(function, _Named) else np.float64
    numbers = np.array([function(draw.seed, number, k) for number in draw.numbers], dtype)
    return numbers[0] if isinstance(draw.draw, int) else draw.xp.asarray(numbers.reshape(-1, *[1] * (rank - 1)))


@cache
def _key(seed: int, draw: int, name: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr((seed, draw, name)).encode(), digest_size=8).digest(), "little")


def _scramble(x: Array, key: Number, prime: int) -> Array:
    """Multiplications and shifts as in splitmix64, then 53 bits scaled to 0 … prime − 1."""
    bits = x.astype(np.uint64) + key
    for multiplier, shift in ((0x9E3779B97F4A7C15, 32), (0xBF58476D1CE4E5B9, 29), (0x94D049BB133111EB, 32)):
        bits = bits * np.uint64(multiplier)
        bits ^= bits >> np.uint64(shift)
    return np.floor((bits >> np.uint64(11)).astype(np.float64) * (prime * 2.0**-53))


def either(first: Array | None, second: Array | None) -> Array | None:
    """Undefined where one of the two is."""
    if first is None:
        return second
    return first if second is None else first | second


Compute = Callable[[Draw, int, Attributes, Sequence[Component]], Component]


@dataclass(frozen=True, slots=True)
class FieldSemantics:
    """`reads` lists (operand, 0 for the same component or 1 for the one below).

    `unfaithful` marks ops that obey other laws here than for numbers: keyed random functions; orders; roots (that of x² is x
    or −x).
    """

    reads: tuple[tuple[int, int], ...]
    compute: Compute
    unfaithful: Callable[[Attributes], bool] = lambda attributes: False


def _binary(function: Callable[[Modulus, Array, Array], Array]) -> FieldSemantics:
    def compute(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        x, y = operands
        return Component(function(draw.modulus(k), x.residues, y.residues), _meet(x, y))

    return FieldSemantics(((0, 0), (1, 0)), compute)


def _meet(x: Component, y: Component) -> Array | None:
    """Where a broadcast result of x and y is undefined."""
    if x.undefined is None and y.undefined is None:
        return None
    shape = np.broadcast_shapes(x.residues.shape, y.residues.shape)
    undefined = either(x.undefined, y.undefined)
    return None if undefined is None else np.broadcast_to(undefined, shape)


def _extreme(largest: bool) -> FieldSemantics:
    """The larger or the smaller of two under the keyed total order of the maxima."""

    def compute(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        x, y = operands
        modulus, rank = draw.modulus(k), x.residues.ndim
        places = [modulus.shuffled(operand.residues, *draw.order(k, rank)) for operand in operands]
        if draw.joins:
            place = (places[0] + places[1]) % (modulus.prime - 1)
        else:
            place = (draw.xp.maximum if largest else draw.xp.minimum)(*places)
        return Component(modulus.unshuffled(place, *draw.inverse_order(k, rank)), _meet(x, y))

    return FieldSemantics(((0, 0), (1, 0)), compute, _always)


def _abs(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """The root of the square: x or −x, the same for both, and that of a product the product of those."""
    [x], modulus = operands, draw.modulus(k)
    return Component(modulus.root(modulus.multiply(x.residues, x.residues)), x.undefined)


def _square(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    [x] = operands
    return Component(draw.modulus(k).multiply(x.residues, x.residues), x.undefined)


def _always(attributes: Attributes) -> bool:
    return True


def keyed(name: str) -> FieldSemantics:
    """A random function, called `name`, of the value: what an op means that means nothing in a field."""

    def compute(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        return Component(draw.keyed(operands[0].residues, k, name, *sorted(attributes.items())), operands[0].undefined)

    return FieldSemantics(((0, 0),), compute, _always)


_STEP = 256  # at least so many places of the order lie between two values of relu


def growing(name: str, idempotent: bool = False) -> FieldSemantics:
    """A random function, called `name`, that grows with its argument in the order of the maxima, so that it commutes with them.

    An idempotent one gives the largest of its values that is not above x. relu as the maximum with 0 would hide what stands
    before it: of n values all are below 0 once in 2^n, and where one is not, relu(max(x)) is max(x).
    """

    def compute(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        [x] = operands
        modulus, rank, key = draw.modulus(k), x.residues.ndim, (name, *sorted(attributes.items()))
        places = modulus.shuffled(x.residues, *draw.order(k, rank))
        if idempotent:
            step, offset = _STEP + draw.offset(k, rank, _STEP, *key), draw.offset(k, rank, modulus.prime, "offset", *key)
            places = draw.xp.maximum(places - (places + offset) % step, 0.0)
        else:
            places = draw.xp.floor(places / 2) + draw.offset(k, rank, modulus.prime // 2, *key)
        return Component(modulus.unshuffled(places, *draw.inverse_order(k, rank)), x.undefined)

    return FieldSemantics(((0, 0),), compute, _always)


def _no_inverse(modulus: Modulus, x: Component) -> Array | None:
    """Where 1/x is undefined; on CuPy residues say it themselves, as not-a-number: to look at a mask is to wait for it."""
    if modulus.xp is not np:
        return x.undefined
    zero = x.residues == 0
    return either(x.undefined, zero if bool(zero.any()) else None)


def _divide(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    [x, y], modulus = operands, draw.modulus(k)
    undefined = _meet(x, Component(y.residues, _no_inverse(modulus, y)))
    return Component(modulus.divide(x.residues, y.residues), undefined)


def _sqrt(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return Component(draw.modulus(k).root(operands[0].residues), operands[0].undefined)


def _rsqrt(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    modulus = draw.modulus(k)
    return Component(modulus.inverse_root(operands[0].residues), _no_inverse(modulus, operands[0]))


def _exp(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return scaled_exp(draw, k, Fraction(1), operands[0])


def scaled_exp(draw: Draw, k: int, factor: Fraction, exponent: Component) -> Component:
    """exp(factor · exponent) for a constant that exists modulo the prime of the exponent."""
    generator = draw.generator(k, exponent.residues.ndim, factor)
    return Component(draw.modulus(k).exponential(exponent.residues, generator), exponent.undefined)


def _sigmoid(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """1 / (1 + ω^(−x))."""
    [exponent] = operands
    generator = draw.generator(k, exponent.residues.ndim, Fraction(-1))
    return Component(draw.modulus(k).logistic(exponent.residues, generator), exponent.undefined)


def _silu(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    x, exponent = operands
    generator = draw.generator(k, exponent.residues.ndim, Fraction(-1))
    residues = draw.modulus(k).silu(x.residues, exponent.residues, generator)
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


def _scale(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return affine(draw.modulus(k), operands[0], attributes["factor"], Fraction(0))


def _shift(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return affine(draw.modulus(k), operands[0], Fraction(1), attributes["offset"])


def _is_no_whole_power(attributes: Attributes) -> bool:
    exponent: Fraction = attributes["exponent"]
    return exponent.denominator != 1


def _pow(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    """Whole exponents and ±½ mean what they say, any other is a keyed random function."""
    [x] = operands
    modulus, exponent = draw.modulus(k), attributes["exponent"]
    if _is_no_whole_power(attributes) and abs(exponent) != Fraction(1, 2):
        return Component(draw.keyed(x.residues, k, "pow", exponent), x.undefined)
    undefined = _no_inverse(modulus, x) if exponent < 0 else x.undefined
    if exponent.denominator == 2:
        return Component(modulus.inverse_root(x.residues) if exponent < 0 else modulus.root(x.residues), undefined)
    base = modulus.inverse(x.residues) if exponent < 0 else x.residues
    return Component(modulus.power(base, abs(int(exponent))), undefined)


# One row for each elementwise op; a test holds the keys equal to the op table's.
_PACKAGED: Mapping[str, FieldSemantics] = {
    "add": _binary(Modulus.add),
    "sub": _binary(Modulus.subtract),
    "mul": _binary(Modulus.multiply),
    "div": FieldSemantics(((0, 0), (1, 0)), _divide),
    "maximum": _extreme(largest=True),
    "minimum": _extreme(largest=False),
    "abs": FieldSemantics(((0, 0),), _abs, _always),
    "exp": FieldSemantics(((0, 1),), _exp),
    "log": growing("log"),
    "square": FieldSemantics(((0, 0),), _square),
    "sqrt": FieldSemantics(((0, 0),), _sqrt, _always),
    "rsqrt": FieldSemantics(((0, 0),), _rsqrt, _always),
    "silu": FieldSemantics(((0, 0), (0, 1)), _silu),
    "sigmoid": FieldSemantics(((0, 1),), _sigmoid),
    "gelu": keyed("gelu"),
    "relu": growing("relu", idempotent=True),
    "tanh": growing("tanh"),
    "pow": FieldSemantics(((0, 0),), _pow, _is_no_whole_power),
    "clamp": growing("clamp", idempotent=True),
    "scale": FieldSemantics(((0, 0),), _scale),
    "shift": FieldSemantics(((0, 0),), _shift),
}
ELEMENTWISE = OpTable(_PACKAGED, lambda spec: keyed(spec.name))
