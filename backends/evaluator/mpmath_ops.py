"""Elementwise ops to many digits, by mpmath: it confirms that two numbers which float64 calls different are different."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath

from mirage_eg.ir.custom_ops import OpSpec, OpTable
from mirage_eg.ir.definitions import by_definition, definition_of

DIGITS = 60
Number = Any  # an mpf


def number(value: Fraction) -> Number:
    """An exact constant."""
    return mpmath.mpf(value.numerator) / value.denominator


def _real(value: Number) -> Number:
    """Not-a-number where the result has left the real line."""
    return value if isinstance(value, mpmath.mpf) else mpmath.nan


def _sigmoid(x: Number) -> Number:
    return 1 / (1 + mpmath.exp(-x))


def _softplus(x: Number) -> Number:
    return mpmath.log1p(mpmath.exp(x))


def _rsqrt(x: Number) -> Number:
    return 1 / _real(mpmath.sqrt(x))


def _larger(x: Number, y: Number) -> Number:
    """Not-a-number if one is."""
    return max(x, y) if x == x and y == y else mpmath.nan


def _smaller(x: Number, y: Number) -> Number:
    return -_larger(-x, -y)


# One row for each elementwise op; a test holds the keys equal to the op table's.
_PACKAGED: Mapping[str, Callable[..., Number]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "maximum": _larger,
    "minimum": _smaller,
    "abs": abs,
    "less": lambda x, y: mpmath.mpf(x < y),
    "less_equal": lambda x, y: mpmath.mpf(x <= y),
    "equal": lambda x, y: mpmath.mpf(x == y),
    "where": lambda condition, x, y: x if condition == 1 else y if condition == 0 else mpmath.nan,
    "cast": lambda x, dtype: x,
    "exp": mpmath.exp,
    "log": lambda x: _real(mpmath.log(x)),
    "log2": lambda x: _real(mpmath.log(x, 2)),
    "log10": lambda x: _real(mpmath.log10(x)),
    "log1p": lambda x: _real(mpmath.log1p(x)),
    "expm1": mpmath.expm1,
    "square": lambda x: x * x,
    "sqrt": lambda x: _real(mpmath.sqrt(x)),
    "rsqrt": _rsqrt,
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "gelu": lambda x: x * (1 + mpmath.erf(x / mpmath.sqrt(2))) / 2,
    "relu": lambda x: _larger(x, mpmath.mpf(0)),
    "tanh": mpmath.tanh,
    "gelu_tanh": lambda x: x * _sigmoid(2 * mpmath.sqrt(2 / mpmath.pi) * (x + x**3 * 44715 / 10**6)),
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "softplus": _softplus,
    "mish": lambda x: x * mpmath.tanh(_softplus(x)),
    "leaky_relu": lambda x, slope: x if x > 0 else number(slope) * x,
    "elu": lambda x, alpha: x if x > 0 else number(alpha) * mpmath.expm1(x),
    "pow": lambda x, exponent: _real(mpmath.power(x, number(exponent))),
    "clamp": lambda x, low, high: _smaller(_larger(x, number(low)), number(high)),
    "scale": lambda x, factor: x * number(factor),
    "shift": lambda x, offset: x + number(offset),
    "fill": lambda x, value: number(value),
}


# Rows that are exact on rationals: a comparison at a computed point (7x = 22) must not depend on rounding.
RATIONAL: Mapping[str, Callable[..., Fraction]] = {
    **{name: _PACKAGED[name] for name in ("add", "sub", "mul", "div", "maximum", "minimum", "abs", "square")},
    "less": lambda x, y: Fraction(x < y),
    "less_equal": lambda x, y: Fraction(x <= y),
    "equal": lambda x, y: Fraction(x == y),
    "relu": lambda x: max(x, Fraction(0)),
    "leaky_relu": lambda x, slope: x if x > 0 else slope * x,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "scale": lambda x, factor: x * factor,
    "shift": lambda x, offset: x + offset,
}


def _custom(spec: OpSpec) -> Callable[..., Number]:
    return spec.exactly or partial(_exactly_by_definition, spec.name)


def _exactly_by_definition(name: str, *operands: Number, **attributes: Any) -> Number:
    definition = definition_of(name, attributes)
    assert definition is not None
    return by_definition(definition, operands, lambda op, *x, **given: ELEMENTWISE[op](*x, **given))


ELEMENTWISE = OpTable(_PACKAGED, _custom)
