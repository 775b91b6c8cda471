"""The rules of elementwise ops, derived from their records: constructor, parts of axes, slices, subexpressions, definition.

Those of the package's ops belong to the theories of THEORIES, after their files. A rule file that declares the
constructor of a user's op itself brings these rules, too; nothing is derived for such an op.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

from mirage_eg.egraph.expression import constructor
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.op.elementwise import PACKAGED, REGISTRY
from mirage_eg.ir.op.record import ElementwiseOp
from mirage_eg.ir.ops import OPS

LARGEST_DEFINITION = 300  # characters of a term; a longer definition is no law
_LARGEST_LITERAL = 1 << 62


def op_rules(domain: str, theory: str) -> Iterator[tuple[str, str]]:
    """The path and the text of the lines of a packaged theory that are derived from records; most theories have none."""
    if (line := THEORIES.get(domain, {}).get(theory)) is not None:
        head = [f"; domain: {domain}", f"; Lines of {theory} that are derived from the records of ops."]
        yield f"ir/op/{theory}.egg", "\n".join([*head, *map(line, PACKAGED.values())]) + "\n"


def custom_op_rules(domain: str, others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The path and the text of a rule file for each op of the user that the texts of `others` do not declare."""
    texts = list(others)
    for op in REGISTRY.values():
        if not any(re.search(rf"\(\s*constructor\s+{constructor(op.name)}\s", text) for text in texts):
            lines = [line(op) for theory, line in THEORIES[domain].items() if theory != _SLICES]
            head = [f"; domain: {domain}", f"; Derived from register_op({op.name!r})."]
            yield f"register_op/{op.name}.egg", "\n".join([*head, *lines, *_definition(op)]) + "\n"


def _term(op: ElementwiseOp, operands: Iterable[str]) -> str:
    constants = (f"c{place}" for place, _ in enumerate(op.attributes))
    return f"({' '.join((constructor(op.name), *constants, *operands))})"


def _law(text: str, family: str, op: ElementwiseOp, ruleset: str = "equivalence") -> str:
    return f'{text} :ruleset {ruleset} :name "{family} {op.name.replace("_", "-")}")'


def _declaration(op: ElementwiseOp) -> str:
    sorts = ("String" if name == "dtype" else "BigRat" for name in op.attributes)
    return f"(constructor {constructor(op.name)} ({' '.join((*sorts, *['E'] * op.arity))}) E)"


def _axes(op: ElementwiseOp) -> str:
    """A value varies with what its operands vary with."""
    if op.constant:
        return _law(f"(rule ((= e {_term(op, op.operands)})) ((set (axes e) (set-empty)))", "axes of", op)
    read = " ".join(f"(= a{x} (axes {x}))" for x in op.operands)
    union = f"a{op.operands[-1]}"
    for x in reversed(op.operands[:-1]):
        union = f"(set-union a{x} {union})"
    return _law(f"(rule ((= e {_term(op, op.operands)}) {read}) ((set (axes e) {union}))", "axes of", op)


def _slice(op: ElementwiseOp) -> str:
    """split(f(x, y)) = f(split(x), split(y))."""
    sliced = [f"(Slice i h s t {x})" for x in op.operands]
    return _law(f"(rewrite (Slice i h s t {_term(op, op.operands)}) {_term(op, sliced)}", "slice of", op)


def _below(op: ElementwiseOp) -> str:
    """The operands of what is part of the root are, too."""
    below = " ".join(f"(below {x})" for x in op.operands)
    return _law(f"(rule ((below e) (= e {_term(op, op.operands)})) ({below})", "below", op, "subexpression")


_SLICES = "35_slices"
THEORIES: Mapping[str, Mapping[str, Callable[[ElementwiseOp], str]]] = {
    "indexed": {"00_language": _declaration, "05_axes": _axes, _SLICES: _slice, "40_subexpression": _below},
    "abstract": {"00_language": _declaration, "40_subexpression": _below},
}
"""The theories of each domain to which each op adds a line, and the line."""


def _definition(op: ElementwiseOp) -> Iterator[str]:
    """The definition as a law, of an op without attributes."""
    if op.definition is not None and not op.attributes and (meaning := _meaning(op)) is not None:
        yield f'(rewrite {_term(op, op.operands)} {meaning} :name "definition of {op.name}")'


def _meaning(defined: ElementwiseOp) -> str | None:
    """The definition as a term of the package's ops; None where the term is too long."""

    def apply(op: str, /, *x: str | None, **attributes: Fraction) -> str | None:
        if (definition := definition_of(op, attributes)) is not None:
            return by_definition(definition, x, apply)
        constants = [_literal(attributes[given]) for given in OPS[op].attributes]
        if op in REGISTRY or None in x or None in constants:
            return None
        term = f"({constructor(op)} {' '.join(map(str, (*constants, *x)))})"
        return term if len(term) <= LARGEST_DEFINITION else None

    return apply(defined.name, *defined.operands)


def _literal(value: Fraction) -> str | None:
    numerator, denominator = value.as_integer_ratio()
    if max(abs(numerator), denominator) >= _LARGEST_LITERAL:
        return None
    return f"(bigrat (bigint {numerator}) (bigint {denominator}))"
