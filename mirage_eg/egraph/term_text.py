"""Terms as text, `(Div (Sum j.t (Mul X W)) (Sqrt N))`, read and written.

An input stands for itself by its name, and a constant of a constructor is written plainly: a part of an axis as j.t, a rational
as 1/64. A name with blanks or parentheses is quoted.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from mirage_eg.egraph.expression import Constant, Expression, Tree
from mirage_eg.egraph.laws import Signature
from mirage_eg.egraph.s_expressions import SExpression, error_at, read_parts
from mirage_eg.ir.errors import OptionError

CLASS = "Class"  # the tree ("Class", 12) is the text #12: any term of that class

_PLAIN = re.compile(r'[^\s()"#][^\s()"]*')


def trees_of(expression: Expression, signatures: Mapping[str, Signature], names: Sequence[str] = ()) -> list[Tree]:
    """The terms of an expression as trees, with `names` for its inputs, if given; equal subterms are one object."""
    trees: list[Tree] = []
    places = dict(zip(expression.inputs, names, strict=False))
    for number, term in enumerate(expression.terms):
        children, constants = iter(term.children), iter(term.constants)
        sorts = signatures[term.constructor].inputs
        parts = (trees[next(children)] if sort == "E" else next(constants) for sort in sorts)
        trees.append(("Var", places[number]) if number in places else (term.constructor, *parts))
    return trees


def children_of_tree(tree: Tree) -> tuple[Tree, ...]:
    """The subterms directly below the root."""
    return tuple(part for part in tree[1:] if isinstance(part, tuple))


def tree_size(tree: Tree) -> int:
    """The number of constructors in a tree, shared subterms counted wherever they occur."""
    sizes: dict[int, int] = {}

    def size(part: Tree) -> int:
        if id(part) not in sizes:
            sizes[id(part)] = 1 + sum(map(size, children_of_tree(part)))
        return sizes[id(part)]

    return size(tree)


def show_term(tree: Tree) -> str:
    """A tree as text, which `parse_term` reads."""
    match tree:
        case ("Var", name):
            return show_constant(name)
        case (name, number) if name == CLASS:
            return f"#{number}"
        case _:
            parts = (show_term(part) if isinstance(part, tuple) else show_constant(part) for part in tree[1:])
            return f"({' '.join([tree[0], *parts])})"


def show_constant(constant: Constant) -> str:
    """A constant as text, which `parse_constant` reads."""
    return json.dumps(constant) if isinstance(constant, str) and not _PLAIN.fullmatch(constant) else str(constant)


def parse_term(text: str, signatures: Mapping[str, Signature], inputs: Collection[str], classes: Collection[int] = ()) -> Tree:
    """The tree of a text; an atom is an input, or one of `classes` as #12.

    Raises OptionError: the text is no term; the message has the place in it.
    """
    return _Reader(signatures, inputs, classes).term(read_parts(text))


def parse_constant(text: str, sort: str) -> Constant:
    """A constant of a base sort: a String (quoted or not), an i64, or a BigRat.

    Raises OptionError: the text is no such number.
    """
    if sort == "String":
        return _unquoted(text)
    try:
        return int(text) if sort == "i64" else Fraction(text)
    except (ValueError, ZeroDivisionError):
        wanted = "a whole number" if sort == "i64" else "a number such as 2, 1/64 or 0.5"
        raise OptionError(f"got {text!r}, wanted {wanted}") from None


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        raise OptionError(f'got {text}, wanted a name; a quoted name may hold \\" and \\\\') from None


@dataclass(frozen=True, slots=True)
class _Reader:
    """What the names of terms may be."""

    signatures: Mapping[str, Signature]
    inputs: Collection[str]
    classes: Collection[int]

    def term(self, part: SExpression) -> Tree:
        """The term of a part of a text."""
        if part.is_atom:
            return self.atom(part)
        head, *arguments = part.parts or (SExpression(")", part.end, part.end),)
        signature = self.signatures.get(head.text)
        if signature is None or signature.kind != "constructor" or signature.output != "E":
            known = sorted(it for it, found in self.signatures.items() if found.kind == "constructor" and found.output == "E")
            near = get_close_matches(head.text, known, n=1, cutoff=0.5)
            wanted = f"did you mean {near[0]}?" if near else f"wanted one of {', '.join(known)}"
            raise error_at(head.start, f"no op {head.text!r}; {wanted}")
        sorts, takes = signature.inputs, f"{head.text} takes {' '.join(signature.inputs)}; got"
        if len(arguments) < len(sorts):
            raise error_at(part.end, f"{takes} {len(arguments)} of {len(sorts)}")
        if len(arguments) > len(sorts):
            raise error_at(arguments[len(sorts)].start, f"{takes} more")
        if head.text == "Var":
            return self.atom(arguments[0])
        pairs = zip(arguments, sorts, strict=True)
        return (head.text, *(self.term(it) if sort == "E" else _constant(it, sort) for it, sort in pairs))

    def atom(self, part: SExpression) -> Tree:
        """An input by its name, or a class by its number."""
        name = str(_constant(part, "String"))
        if name in self.inputs:
            return ("Var", name)
        if re.fullmatch(r"#\d+", name) and self.classes:
            if int(name[1:]) in self.classes:
                return (CLASS, int(name[1:]))
            raise error_at(part.start, f"no class {name}; wanted #0 to #{max(self.classes)}")
        near = get_close_matches(name, self.inputs, n=1)
        hint = f"did you mean {near[0]}?" if near else f"wanted an input ({', '.join(self.inputs)}) or a term in parentheses"
        raise error_at(part.start, f"no input {name!r}; {hint}")


def _constant(part: SExpression, sort: str) -> Constant:
    if not part.is_atom:
        raise error_at(part.start, f"got '(', wanted a constant ({sort})")
    try:
        return parse_constant(part.text, sort)
    except OptionError as error:
        raise error_at(part.start, str(error)) from None
