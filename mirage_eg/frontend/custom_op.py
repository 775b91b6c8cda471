"""`register_op`: a custom elementwise op is one row of the registry; the tables of all rooms read their part of the row.

A rule file of the user's holds the laws of the op, and the laws of `axes` and `below` without which the search cannot use it.
"""

import ast
import inspect
import re
from collections.abc import Callable
from string import Formatter
from typing import Any

import numpy as np

from mirage_eg.ir.custom_ops import REGISTRY, OpSpec
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.ops import OPS


def register_op(
    name: str,
    *,
    numbers: Callable[..., Any],
    exactly: Callable[..., Any],
    triton: str,
    torch: str,
    keeps_zero: bool = False,
) -> None:
    """Add an elementwise op of one operand to the op table and to every algebra, in this process and its workers.

    `numbers(xp, x)` computes on NumPy or CuPy arrays, `exactly(x)` on mpmath's numbers; `triton` and `torch` are expressions in
    `{x}`, a name or a call. `keeps_zero`: zero in gives zero out. In the finite field the op is a random function, equal on
    equal arguments, as tanh is. A second registration of a name replaces the first.

    Raises:
        GraphError: the name is no identifier or is an op of the package; a function or expression does not take one operand.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise GraphError(f"register_op: got the name {name!r}, wanted lower-case letters, digits and underscores")
    if name in OPS and name not in REGISTRY:
        raise GraphError(f"register_op: the op table has an op {name!r} already; choose another name")
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
    REGISTRY[name] = OpSpec(name, numbers, exactly, triton, torch, keeps_zero)


def _problem(text: str) -> str | None:
    """The reason why a text is not an expression in `{x}`, if it is not."""
    try:
        fields = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
        if fields != {"x"}:
            return "wanted one in {x} alone: a new op takes one operand"
        ast.parse(text.format(x="x"), mode="eval")
    except (SyntaxError, ValueError) as error:
        return f"which is no Python expression: {error}"
    return None


__all__ = ["register_op"]
