"""egglog's terms and commands from names and constants; rational constants have any size.

egglog's integer literals have 64 bits. A larger numerator or denominator is written in limbs of 62 bits, shifted and added.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from mirage_eg.egraph.egglog_bindings import bindings

if TYPE_CHECKING:
    from mirage_eg.egraph.expression import Constant

_SPAN = bindings.RustSpan(__name__, 0, 0)
_LIMB = 62  # bits


def call(name: str, *arguments: bindings._Expr | Constant) -> bindings.Call:
    """A constructor, function or primitive of terms and constants."""
    return bindings.Call(_SPAN, name, [literal(it) if isinstance(it, str | int | Fraction) else it for it in arguments])


def vector(parts: Sequence[int | bindings._Expr]) -> bindings.Call:
    """A vector of terms or of numbers: a shape, or the order of dims."""
    return call("vec-of", *parts) if parts else call("vec-empty")


def set_of(parts: Collection[str]) -> bindings.Call:
    """A set of parts of axes."""
    return call("set-of", *sorted(parts)) if parts else call("set-empty")


def term_name(number: int) -> str:
    """The name of a program's term, by its number.

    It does not end with a digit: with the names `$t1` and `$t11` egglog 13.2 reads `(Mul $t1 $t11)` as a product of equals.
    """
    return f"$t{number}_"


def term(number: int) -> bindings.Var:
    """A term of a program, by its number."""
    return bindings.Var(_SPAN, term_name(number))


def variable(number: int) -> bindings.Var:
    """A variable of a rule that stands for a term of a program, by the term's number."""
    return bindings.Var(_SPAN, f"v{number}_")


def define(number: int, value: bindings._Expr) -> bindings.ActionCommand:
    """The command that gives a term its number."""
    return bindings.ActionCommand(bindings.Let(_SPAN, term_name(number), value))


def assign(function: str, argument: bindings._Expr, value: bindings._Expr) -> bindings.ActionCommand:
    """The command that sets a function at an argument."""
    return bindings.ActionCommand(bindings.Set(_SPAN, function, [argument], value))


def fact(name: str, *arguments: bindings._Expr | Constant) -> bindings.ActionCommand:
    """The command that adds a row to a relation."""
    return bindings.ActionCommand(bindings.Expr_(_SPAN, call(name, *arguments)))


def union(left: bindings._Expr, right: bindings._Expr) -> bindings.ActionCommand:
    """The command that makes two terms equal."""
    return bindings.ActionCommand(bindings.Union(_SPAN, left, right))


def run_once(egraph: bindings.EGraph, ruleset: str) -> bindings.RunReport:
    """Run one iteration of a ruleset."""
    [output] = egraph.run_program(bindings.RunSchedule(bindings.Run(_SPAN, bindings.RunConfig(ruleset, None))))
    assert isinstance(output, bindings.RunScheduleOutput)
    return output.report


def table_sizes(egraph: bindings.EGraph) -> list[tuple[str, int]]:
    """The rows of each constructor, function and relation."""
    [sizes] = egraph.run_program(bindings.PrintSize(_SPAN, None))
    assert isinstance(sizes, bindings.PrintAllFunctionsSize)
    return sizes.sizes


def constant_readers(egraph: bindings.EGraph) -> dict[str, Callable[[bindings.Value], Constant]]:
    """The constant that a value is, by its sort."""
    return {"String": egraph.value_to_string, "i64": egraph.value_to_i64, "BigRat": egraph.value_to_bigrat}


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
    sizes = range(0, max(1, value.bit_length()), _LIMB)
    top, *limbs = [(value >> size) & ((1 << _LIMB) - 1) for size in reversed(sizes)]
    if value < 0:
        top -= 1 << _LIMB  # the limbs below are added to it
    number = call("bigint", top)
    for limb in limbs:
        number = call("+", call("<<", number, _LIMB), call("bigint", limb))
    return number
