"""An elementwise op from outside the package: its row, its meaning in the algebras, its Triton expression.

The laws of the op, and the laws of `axes` and `below` without which the search cannot use it, are a rule file of the user's.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, cast

import numpy as np

from mirage_eg.backends.evaluator import field_semantics, floating_point, mpmath_ops
from mirage_eg.backends.triton import op_table
from mirage_eg.ir import ops, shapes
from mirage_eg.ir.errors import GraphError


@dataclass(frozen=True, slots=True)
class NewOp:
    """An op from outside: what it computes, and its expressions in `{x}`."""

    name: str
    numbers: Callable[..., Any]
    triton: str
    torch: str


def register_op(
    name: str,
    *,
    numbers: Callable[..., Any],
    exactly: Callable[..., Any],
    triton: str,
    torch: str,
    keeps_zero: bool = False,
) -> None:
    """Add an elementwise op of one operand to the op table and to every algebra.

    `numbers(xp, x)` computes on NumPy or CuPy arrays, `exactly(x)` on mpmath's numbers; `triton` and `torch` are expressions in
    `{x}`, which stands for a name or a call. `keeps_zero`: zero in gives zero out. In the finite field the op is a random
    function, equal on equal arguments, as tanh is. Registering a name again replaces what it meant.

    Raises:
        GraphError: the name is no identifier or is an op of the package; a function or expression does not take one operand.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise GraphError(f"register_op: got the name {name!r}, wanted lower-case letters, digits and underscores")
    if name in ops.OPS and name not in _REGISTERED:
        raise GraphError(f"register_op: an op {name!r} stands already in the op table; choose another name")
    for function, wanted in ((numbers, 2), (exactly, 1)):
        if len(inspect.signature(function).parameters) != wanted:
            raise GraphError(f"register_op: {name}: wanted numbers(xp, x) and exactly(x); a new op takes one operand")
    for text in (triton, torch):
        if (problem := _problem(text)) is not None:
            raise GraphError(f"register_op: {name}: got the expression {text!r}, {problem}")
    with np.errstate(all="ignore"):
        at_zero = numbers(np, np.zeros(1)) if keeps_zero else np.zeros(1)
    if not np.all(at_zero == 0):
        raise GraphError(f"register_op: {name}: got keeps_zero=True, but numbers(np, x) is {at_zero[0]:g} at x = 0")
    _REGISTERED[name] = NewOp(name, numbers, triton, torch)
    row = ops.Op(
        name=name,
        kind=ops.Kind.ELEMENTWISE,
        arity=(1, 1),
        levels=ops.EVERYWHERE,
        shape=shapes.broadcast,
    )
    ops.OPS[name] = row
    _table(floating_point.ELEMENTWISE)[name] = numbers
    _table(mpmath_ops.ELEMENTWISE)[name] = exactly
    _table(field_semantics.ELEMENTWISE)[name] = field_semantics.keyed(name)
    op_table.ELEMENTWISE[name] = op_table.ElementwiseRow(
        name,
        lambda x, attributes: triton.format(x=x[0]),
        lambda x, attributes: torch.format(x=x[0]),
        lambda attributes: keeps_zero,
        False,
    )
    op_table.NOUNS[name] = name


_REGISTERED: dict[str, NewOp] = {}


def registered() -> Mapping[str, NewOp]:
    """The ops from outside, by name."""
    return _REGISTERED


def _problem(text: str) -> str | None:
    """Why a text is no expression in `{x}`, if it is none."""
    try:
        fields = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
        if fields != {"x"}:
            return "wanted one in {x} alone: a new op takes one operand"
        ast.parse(text.format(x="x"), mode="eval")
    except (SyntaxError, ValueError) as error:
        return f"which is no Python expression: {error}"
    return None


def _table(rows: Mapping[str, Any]) -> dict[str, Any]:
    """A table that is read-only to everyone else."""
    return cast(dict[str, Any], rows)
