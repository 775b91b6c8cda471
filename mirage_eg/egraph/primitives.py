"""egglog's primitives on numbers, strings and sets, for the sorts of the rule domains; a failing one raises ArithmeticError."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any


def _divide(x: Any, y: Any) -> Any:
    if isinstance(x, Fraction):
        return x / y
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _power(x: Any, y: Any) -> Any:
    if y.denominator != 1 or abs(y) > 64:
        raise ArithmeticError
    return x ** int(y)


PRIMITIVES: Mapping[str, Callable[..., Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": _divide,
    "%": lambda x, y: x - y * _divide(x, y),
    "neg": lambda x: -x,
    "abs": abs,
    "pow": _power,
    "min": lambda *x: min(x),
    "max": lambda *x: max(x),
    "<": lambda x, y: x < y,
    ">": lambda x, y: x > y,
    "<=": lambda x, y: x <= y,
    ">=": lambda x, y: x >= y,
    "=": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "bigint": int,
    "<<": lambda x, bits: x << bits,
    "bigrat": Fraction,
    "numer": lambda x: x.numerator,
    "denom": lambda x: x.denominator,
    "bits": int.bit_length,
    "set-of": lambda *parts: frozenset(parts),
    "set-empty": frozenset,
    "set-insert": lambda parts, part: parts | {part},
    "set-remove": lambda parts, part: parts - {part},
    "set-union": lambda a, b: a | b,
    "set-intersect": lambda a, b: a & b,
    "set-diff": lambda a, b: a - b,
    "set-contains": lambda parts, part: part in parts,
    "set-not-contains": lambda parts, part: part not in parts,
    "set-length": len,
}
