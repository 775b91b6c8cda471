"""Terms for egglog, from constants and names: rational constants of any size.

egglog's integer literals have 64 bits. A larger part of a rational is written as pieces of 62 bits, shifted and added.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from fractions import Fraction
from typing import TYPE_CHECKING

from egglog import bindings

if TYPE_CHECKING:
    from mirage_eg.egraph.expression import Constant

_SPAN = bindings.RustSpan(__name__, 0, 0)
_PIECE = 62  # bits of a literal that is added to a larger number


def call(name: str, *arguments: bindings._Expr | Constant) -> bindings.Call:
    """A constructor, function or primitive of terms and constants."""
    return bindings.Call(_SPAN, name, [literal(it) if isinstance(it, str | int | Fraction) else it for it in arguments])


def term_name(number: int) -> str:
    """The name of a term of a program, by its number.

    It ends with no digit: with the names `$t1` and `$t11` egglog 13.2 takes `(Mul $t1 $t11)` for a product of equals, as if it
    made names of its own by adding digits.
    """
    return f"$t{number}_"


def literal(value: Constant) -> bindings._Expr:
    """A constant: a String, an i64, or a BigRat."""
    match value:
        case str():
            return bindings.Lit(_SPAN, bindings.String(value))
        case Fraction():
            return call("bigrat", *map(_bigint, value.as_integer_ratio()))
        case int():
            return bindings.Lit(_SPAN, bindings.Int(value))


def _bigint(value: int) -> bindings.Call:
    sizes = range(0, max(1, value.bit_length()), _PIECE)
    top, *pieces = [(value >> size) & ((1 << _PIECE) - 1) for size in reversed(sizes)]
    if value < 0:
        top -= 1 << _PIECE  # the pieces below are added to it
    number = call("bigint", top)
    for piece in pieces:
        number = call("+", call("<<", number, _PIECE), call("bigint", piece))
    return number


__all__ = ["call", "literal", "term_name"]
