"""The rules of custom ops, derived from their specs: constructor, parts of axes, subexpressions, and the definition as a law.

A rule file that declares the constructor of an op itself brings these rules, too; nothing is derived for such an op.
"""

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

from mirage_eg.egraph.expression import constructor
from mirage_eg.ir.custom_ops import REGISTRY
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.op.record import ElementwiseOp
from mirage_eg.ir.ops import OPS

LARGEST_DEFINITION = 300  # characters of a term; a longer definition is no law
_LARGEST_LITERAL = 1 << 62


def custom_op_rules(domain: str, others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The path and the text of a rule file for each custom op that the texts of `others` do not declare."""
    texts = list(others)
    for spec in REGISTRY.values():
        name = constructor(spec.name)
        if not any(re.search(rf"\(\s*constructor\s+{name}\s", text) for text in texts):
            yield f"register_op/{spec.name}.egg", _rules(spec, name, domain)


def _rules(spec: ElementwiseOp, name: str, domain: str) -> str:
    constants, operands = [f"c{place}" for place, _ in enumerate(spec.attributes)], spec.operands
    term = f"({name} {' '.join((*constants, *operands))})"
    lines = [
        f"; domain: {domain}",
        f"; Derived from register_op({spec.name!r}).",
        f"(constructor {name} ({' '.join((*['BigRat'] * len(constants), *['E'] * len(operands)))}) E)",
    ]
    if domain == "indexed":
        axes = " ".join(f"(= a{x} (axes {x}))" for x in operands)
        union = f"a{operands[-1]}"
        for x in reversed(operands[:-1]):
            union = f"(set-union a{x} {union})"
        lines.append(f'(rule ((= e {term}) {axes}) ((set (axes e) {union})) :name "axes of {spec.name}")')
    below = " ".join(f"(below {x})" for x in operands)
    lines.append(f'(rule ((below e) (= e {term})) ({below}) :ruleset subexpression :name "below {spec.name}")')
    if not constants and (meaning := _meaning(spec.name, operands)) is not None:
        lines.append(f'(rewrite {term} {meaning} :name "definition of {spec.name}")')
    return "\n".join(lines) + "\n"


def _meaning(name: str, operands: tuple[str, ...]) -> str | None:
    """The definition as a term of the package's ops; None where an op has none, or the term is too long."""

    def apply(op: str, /, *x: str | None, **attributes: Fraction) -> str | None:
        if (definition := definition_of(op, attributes)) is not None:
            return by_definition(definition, x, apply)
        constants = [_literal(attributes[given]) for given in OPS[op].attributes]
        if op in REGISTRY or None in x or None in constants:
            return None
        term = f"({constructor(op)} {' '.join(map(str, (*constants, *x)))})"
        return term if len(term) <= LARGEST_DEFINITION else None

    return apply(name, *operands) if REGISTRY[name].definition is not None else None


def _literal(value: Fraction) -> str | None:
    numerator, denominator = value.as_integer_ratio()
    if max(abs(numerator), denominator) >= _LARGEST_LITERAL:
        return None
    return f"(bigrat (bigint {numerator}) (bigint {denominator}))"


__all__ = ["custom_op_rules"]
