"""`register_op`: an elementwise op of the user is a record as those of the package (`mirage_eg/ir/op`).

The rules that the search needs are derived (`mirage_eg/egraph/rule_files.py`); a rule file holds further laws.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from string import Formatter
from typing import Any

import numpy as np

from mirage_eg.backends.triton.op_table import PACKAGED_HELPERS
from mirage_eg.ir.definitions import primitive_nodes, traced
from mirage_eg.ir.errors import GraphError, MirageError
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.ir.op.record import OPERANDS, ElementwiseOp, OnNumbers
from mirage_eg.ir.ops import OPS, Kind

_RESERVED = frozenset({"e", "var", "const"})  # constructors and sorts of the rule language
_SAMPLES = (Fraction(1, 2), Fraction(2), Fraction(-3, 4))


def register_op(
    name: str,
    *,
    definition: Callable[..., Any] | None = None,
    arity: int = 1,
    attributes: Sequence[str] = (),
    numbers: Callable[..., Any] | None = None,
    exactly: Callable[..., Any] | None = None,
    triton: str | None = None,
    torch: str | None = None,
    helpers: str = "",
    keeps_zero: bool = False,
) -> None:
    """Add an elementwise op to the op table, to every algebra and to the rules, in this process and its workers.

    `definition(b, x)` writes the op in other elementwise ops of the builder `b`, as in `lambda b, x: b.square(b.relu(x))`;
    everything else is derived from it. Without a definition, `numbers(xp, x)` on NumPy or CuPy arrays and `exactly(x)` on
    mpmath's numbers define it, and it needs both expressions. With `arity` 2 or 3 the functions take x, y and z, and with
    `attributes` also these, by name, as exact rational numbers.

    `triton` and `torch` are expressions in `{x}`, `{y}`, `{z}` and `{ATTRIBUTE}`; `helpers` is the source of `@triton.jit`
    functions that the Triton expression calls. Both are compared with the definition before the op is used. `keeps_zero`: zero
    in gives zero out (computed from a definition). In the finite field an op without a definition is a random function.
    A second registration of a name replaces the first.

    Raises GraphError: a name that is taken or malformed; a function or expression that does not fit the operands and
    attributes; a definition by an op that is not elementwise, or by the op itself.
    """
    prefix = f"register_op: {name}:"
    _check_names(name, arity, attributes)
    if definition is None and None in (numbers, exactly, triton, torch):
        raise GraphError(f"{prefix} wanted a definition, or numbers, exactly, triton and torch")
    if definition is not None and (numbers is not None or exactly is not None or keeps_zero):
        raise GraphError(f"{prefix} got numbers, exactly or keeps_zero together with a definition, which computes them")
    spec = ElementwiseOp(
        name=name,
        arity=arity,
        attributes=tuple(attributes),
        definition=definition,
        numbers=numbers,
        exactly=None if exactly is None else OnNumbers(exactly),
        triton=triton,
        torch=torch,
        helpers=_helpers(name, helpers, triton),
        keeps_zero=None if definition is not None else keeps_zero,
    )
    _check_signatures(prefix, spec, exactly)
    for text in (triton, torch):
        if text is not None and (problem := _problem(text, spec)) is not None:
            raise GraphError(f"{prefix} got the expression {text!r}, {problem}")
    if definition is not None:
        _check_definition(prefix, spec)
    elif keeps_zero:
        _check_zero(prefix, spec)
    REGISTRY[name] = spec


def sample_attributes(spec: ElementwiseOp) -> list[dict[str, Fraction]]:
    """Values of the attributes of an op, for tests: one setting of an op without attributes, else three."""
    count = len(_SAMPLES) if spec.attributes else 1
    return [{name: _SAMPLES[(i + j) % len(_SAMPLES)] for j, name in enumerate(spec.attributes)} for i in range(count)]


def _check_names(name: str, arity: int, attributes: Sequence[str]) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*", name) or name in _RESERVED:
        raise GraphError(
            f"register_op: got the name {name!r}, wanted lower-case letters, digits and underscores, as in my_op2 "
            f"(a letter begins each part; {', '.join(sorted(_RESERVED))} are taken)"
        )
    if name in OPS and name not in REGISTRY:
        raise GraphError(f"register_op: the op table has an op {name!r} already; choose another name")
    if isinstance(arity, bool) or arity not in range(1, len(OPERANDS) + 1):
        raise GraphError(f"register_op: {name}: got arity {arity!r}, wanted 1 to {len(OPERANDS)}")
    if isinstance(attributes, str) or not all(isinstance(it, str) for it in attributes):
        raise GraphError(f"register_op: {name}: got attributes {attributes!r}, wanted names, as in attributes=['slope']")
    taken = {it for row in OPS.values() if row.kind is not Kind.ELEMENTWISE for it in row.attributes} | {*OPERANDS, "xp", "b"}
    for attribute in attributes:
        if not attribute.isidentifier() or attribute in taken or list(attributes).count(attribute) > 1:
            raise GraphError(
                f"register_op: {name}: got the attribute {attribute!r}, wanted an identifier that is free: "
                f"{', '.join(sorted(taken))} are taken"
            )


def _helpers(name: str, text: str, triton: str | None) -> tuple[tuple[str, str], ...]:
    """The names and sources of helper functions."""
    prefix = f"register_op: {name}:"
    if not text.strip():
        return ()
    if triton is None:
        raise GraphError(f"{prefix} got helpers without a Triton expression that calls them")
    source = inspect.cleandoc(text)
    try:
        functions = ast.parse(source).body
    except SyntaxError as error:
        raise GraphError(f"{prefix} got helpers that are no Python: line {error.lineno}: {error.msg}") from None
    others = {helper: code for spec in REGISTRY.values() for helper, code in spec.helpers if spec.name != name}
    found = []
    for function in functions:
        decorated = isinstance(function, ast.FunctionDef) and "triton.jit" in map(ast.unparse, function.decorator_list)
        if not isinstance(function, ast.FunctionDef) or not decorated:
            raise GraphError(
                f"{prefix} line {function.lineno} of helpers: wanted functions with the decorator @triton.jit alone"
            )
        code = "\n".join(source.splitlines()[function.decorator_list[0].lineno - 1 : function.end_lineno]) + "\n"
        if function.name in PACKAGED_HELPERS or others.get(function.name, code) != code:
            raise GraphError(f"{prefix} the helper name {function.name} is taken; choose another")
        found.append((function.name, code))
    return tuple(found)


def _check_signatures(prefix: str, spec: ElementwiseOp, exactly: Callable[..., Any] | None) -> None:
    given = dict.fromkeys(spec.attributes)
    for label, function, leading in (
        ("definition(b, ", spec.definition, ("b",)),
        ("numbers(xp, ", spec.numbers, ("xp",)),
        ("exactly(", exactly, ()),
    ):
        if function is None:
            continue
        wanted = f"{label}{', '.join((*spec.operands, *spec.attributes))})"
        if not callable(function):
            raise GraphError(f"{prefix} got {function!r}, wanted a function {wanted}")
        try:
            inspect.signature(function).bind(*leading, *spec.operands, **given)
        except (TypeError, ValueError) as error:
            raise GraphError(f"{prefix} wanted {wanted}, for arity {spec.arity}: {error}") from None


def _problem(text: str, spec: ElementwiseOp) -> str | None:
    """The reason why a text is not an expression in the operands and attributes, if it is not."""
    allowed = (*spec.operands, *spec.attributes)
    try:
        fields = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
        if not set(spec.operands) <= fields or not fields <= set(allowed):
            names = " and ".join(f"{{{name}}}" for name in allowed)
            return f"wanted one in {names}{' alone: arity is 1' if allowed == ('x',) else ''}"
        ast.parse(text.format(**{name: name for name in allowed}), mode="eval")
    except (SyntaxError, ValueError) as error:
        return f"which is no Python expression: {error}"
    return None


def _check_definition(prefix: str, spec: ElementwiseOp) -> None:
    """Trace the definition for sample attributes; the op itself is not in the registry meanwhile."""
    earlier = REGISTRY.pop(spec.name, None)
    try:
        problems = [_definition_problem(spec, given) for given in sample_attributes(spec)]
    finally:
        if earlier is not None:
            REGISTRY[spec.name] = earlier
    if None not in problems:
        raise GraphError(f"{prefix} definition: {problems[0]}")


def _definition_problem(spec: ElementwiseOp, attributes: Mapping[str, Fraction]) -> str | None:
    try:
        graph = traced(spec, tuple(sorted(attributes.items())))
        parts = [part for item in graph.nodes[spec.arity : -1] for part in primitive_nodes(item.op, item.mapping)]
    except MirageError as error:
        return str(error)
    except (TypeError, AttributeError, NameError, ValueError, ArithmeticError) as error:  # of the user's function
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    if any(op not in OPS for op, _ in parts):
        return f"{spec.name} is defined by itself"
    return None


def _check_zero(prefix: str, spec: ElementwiseOp) -> None:
    assert spec.numbers is not None
    for attributes in sample_attributes(spec):
        with np.errstate(all="ignore"):
            at_zero = spec.numbers(np, *[np.zeros(1)] * spec.arity, **attributes)
        if not np.all(at_zero == 0):
            raise GraphError(f"{prefix} got keeps_zero=True, but numbers(np, x) is {at_zero[0]:g} at x = 0")
