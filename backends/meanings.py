"""What each elementwise op means in the finite field: one row each. Part of the trusted core.

A row says which components of its operands component k of the result reads, and how. Ops that mean nothing in a field (relu,
tanh, log, …) are keyed random functions of the value and of their parameters: equal arguments agree, nothing else does.

    k   component: 0, 1, 2 for p, q, r        ω   element of order (prime − 1)/2, drawn anew for each draw
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.modular import PRIMES, Modulus, modulus
from mirage_eg.backends.passes import one_pass
from mirage_eg.ir.ops import Attributes


class Component(NamedTuple):
    """Residues modulo one prime, and where they are undefined (a division by zero lies behind them; None: nowhere)."""

    residues: Array
    undefined: Array | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """One random draw: everything random in the field is a function of it and of a name."""

    seed: int
    draw: int
    xp: Any = np

    def modulus(self, k: int) -> Modulus:
        """Arithmetic of component k."""
        return modulus(PRIMES[k], self.xp)

    def key(self, *name: object) -> int:
        """64 random bits that belong to a name."""
        return _key(self.seed, self.draw, name)

    def generator(self, k: int) -> int:
        """The exponent 1 ≤ t < (prime − 1)/2 that makes ω = g^(2t) of component k."""
        return 1 + self.key("omega", k) % ((PRIMES[k] - 1) // 2 - 1)

    def order_key(self, k: int) -> tuple[int, int]:
        """Factor and offset that key the total order of component k."""
        return 1 + self.key("order factor", k) % (PRIMES[k] - 1), self.key("order offset", k) % PRIMES[k]

    def keyed(self, x: Array, k: int, *name: object) -> Array:
        """A random function, called `name`, of the residues x to residues of component k."""
        key = self.key(k, *name)
        return one_pass(
            self.xp, "keyed", lambda a: _scramble(a, key, PRIMES[k]), x, constants=(np.uint64(key), float(PRIMES[k]))
        )


@cache
def _key(seed: int, draw: int, name: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr((seed, draw, name)).encode(), digest_size=8).digest(), "little")


def _scramble(x: Array, key: int, prime: int) -> Array:
    """Multiplications and shifts as in splitmix64, then 53 bits scaled to 0 … prime − 1."""
    bits = x.astype(np.uint64) + np.uint64(key)
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
class Meaning:
    """`reads` lists (operand, 0 for the same component or 1 for the one below).

    `unfaithful` marks ops that obey other laws here than for numbers: keyed random functions; roots (that of x² is x or −x).
    """

    reads: tuple[tuple[int, int], ...]
    compute: Compute
    unfaithful: Callable[[Attributes], bool] = lambda attributes: False


def _binary(function: Callable[[Modulus, Array, Array], Array]) -> Meaning:
    def compute(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        x, y = operands
        return Component(function(draw.modulus(k), x.residues, y.residues), _meet(x, y))

    return Meaning(((0, 0), (1, 0)), compute)


def _meet(x: Component, y: Component) -> Array | None:
    """Where a broadcast result of x and y is undefined."""
    if x.undefined is None and y.undefined is None:
        return None
    shape = np.broadcast_shapes(x.residues.shape, y.residues.shape)
    undefined = either(x.undefined, y.undefined)
    return None if undefined is None else np.broadcast_to(undefined, shape)


def _square(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    [x] = operands
    return Component(draw.modulus(k).multiply(x.residues, x.residues), x.undefined)


def _always(attributes: Attributes) -> bool:
    return True


def keyed(name: str) -> Meaning:
    """A random function, called `name`, of the value: what an op means that means nothing in a field."""

    def compute(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
        return Component(draw.keyed(operands[0].residues, k, name, *sorted(attributes.items())), operands[0].undefined)

    return Meaning(((0, 0),), compute, _always)


def _no_inverse(x: Component) -> Array | None:
    """Where 1/x is undefined."""
    zero = x.residues == 0
    return either(x.undefined, zero if bool(zero.any()) else None)


def _inverse(modulus: Modulus, x: Component) -> Component:
    return Component(modulus.inverse(x.residues), _no_inverse(x))


def _divide(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    x, inverse = operands[0], _inverse(draw.modulus(k), operands[1])
    return Component(draw.modulus(k).multiply(x.residues, inverse.residues), _meet(x, inverse))


def _sqrt(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return Component(draw.modulus(k).root(operands[0].residues), operands[0].undefined)


def _rsqrt(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    inverse = _inverse(draw.modulus(k), operands[0])
    return Component(draw.modulus(k).root(inverse.residues), inverse.undefined)


def _exp(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    exponent = operands[0]
    return Component(draw.modulus(k).exponential(exponent.residues, draw.generator(k)), exponent.undefined)


def _logistic(draw: Draw, k: int, exponent: Component) -> Component:
    """1 / (1 + ω^(−x)); never a division by zero, since −1 is no square and powers of ω are."""
    modulus = draw.modulus(k)
    order = (modulus.prime - 1) // 2
    power = modulus.exponential(exponent.residues, order - draw.generator(k))
    return Component(modulus.inverse(modulus.affine(power, 1, 1)), exponent.undefined)


def _sigmoid(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    return _logistic(draw, k, operands[0])


def _silu(draw: Draw, k: int, attributes: Attributes, operands: Sequence[Component]) -> Component:
    x, logistic = operands[0], _logistic(draw, k, operands[1])
    return Component(draw.modulus(k).multiply(x.residues, logistic.residues), either(x.undefined, logistic.undefined))


def rational(value: Fraction, prime: int) -> int | None:
    """The residue of an exact constant; None where `prime` divides its denominator."""
    if value.denominator % prime == 0:
        return None
    return value.numerator * pow(value.denominator, -1, prime) % prime


def affine(modulus: Modulus, x: Component, factor: Fraction, offset: Fraction) -> Component:
    """factor · x + offset for exact constants."""
    a, b = rational(factor, modulus.prime), rational(offset, modulus.prime)
    if a is None or b is None:
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
    base = _inverse(modulus, x) if exponent < 0 else x
    residues = modulus.root(base.residues) if exponent.denominator == 2 else modulus.power(base.residues, abs(int(exponent)))
    return Component(residues, base.undefined)


# One row for each elementwise op; a test holds the keys equal to the op table's.
ELEMENTWISE: Mapping[str, Meaning] = {
    "add": _binary(Modulus.add),
    "sub": _binary(Modulus.subtract),
    "mul": _binary(Modulus.multiply),
    "div": Meaning(((0, 0), (1, 0)), _divide),
    "exp": Meaning(((0, 1),), _exp),
    "log": keyed("log"),
    "square": Meaning(((0, 0),), _square),
    "sqrt": Meaning(((0, 0),), _sqrt, _always),
    "rsqrt": Meaning(((0, 0),), _rsqrt, _always),
    "silu": Meaning(((0, 0), (0, 1)), _silu),
    "sigmoid": Meaning(((0, 1),), _sigmoid),
    "gelu": keyed("gelu"),
    "relu": keyed("relu"),
    "tanh": keyed("tanh"),
    "pow": Meaning(((0, 0),), _pow, _is_no_whole_power),
    "clamp": keyed("clamp"),
    "scale": Meaning(((0, 0),), _scale),
    "shift": Meaning(((0, 0),), _shift),
}
