"""Terms as text, `(Div (Sum j.t (Mul X W)) (Sqrt N))`, read and written.

An input stands for itself by its name, and a constant of a constructor is written plainly: a part of an axis as j.t, a rational
as 1/64. A name with blanks or parentheses is quoted.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction

from mirage_eg.egraph.expression import Constant, Expression, Tree
from mirage_eg.egraph.laws import Signature
from mirage_eg.ir.errors import OptionError

CLASS = "Class"  # the tree ("Class", 12) is the text #12: any term of that class

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[()]|[^\s()"]+)')
_PLAIN = re.compile(r'[^\s()"#][^\s()"]*')
_DEEPEST = 400  # parentheses


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
    tokens = list(_tokens(text))
    if not tokens:
        raise OptionError("term: got an empty text, wanted a term such as (Mul X W)")
    parser = _Parser(text, tokens, signatures, inputs, classes)
    tree = parser.term(0)
    if parser.position < len(tokens):
        raise parser.error(f"got {tokens[parser.position][0]!r} after the end of the term")
    return tree


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


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    position = 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if found is None:
            raise OptionError(f"term, character {position + 1}: the quote that opens here is never closed")
        yield found[1], found.start(1)
        position = found.end()


class _Parser:
    """A reader of the tokens of one text, from left to right."""

    def __init__(
        self,
        text: str,
        tokens: Sequence[tuple[str, int]],
        signatures: Mapping[str, Signature],
        inputs: Collection[str],
        classes: Collection[int],
    ) -> None:
        self.text, self.tokens, self.signatures = text, tokens, signatures
        self.inputs, self.classes = inputs, classes
        self.position = 0

    def error(self, message: str) -> OptionError:
        """The error with the place of the token at the position."""
        place = self.tokens[min(self.position, len(self.tokens) - 1)][1] + 1
        return OptionError(f"term, character {place}: {message}")

    def take(self) -> str:
        """The next token."""
        if self.position == len(self.tokens):
            raise self.error("the text ends within a term; is a parenthesis missing?")
        self.position += 1
        return self.tokens[self.position - 1][0]

    def back(self, message: str) -> OptionError:
        """The error at the token that was taken last."""
        self.position -= 1
        return self.error(message)

    def term(self, depth: int) -> Tree:
        """The term that begins at the position."""
        token = self.take()
        if depth > _DEEPEST:
            raise self.back(f"got more than {_DEEPEST} parentheses in one another")
        if token == ")":
            raise self.back("got ')', wanted a term")
        if token != "(":
            return self.atom(token)
        name = self.take()
        signature = self.signatures.get(name)
        if signature is None or signature.kind != "constructor" or signature.output != "E":
            known = sorted(it for it, found in self.signatures.items() if found.kind == "constructor" and found.output == "E")
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            raise self.back(f"no op {name!r}; " + (f"did you mean {near[0]}?" if near else f"wanted one of {', '.join(known)}"))
        parts: list[Constant | Tree] = []
        for sort in signature.inputs:
            if self.position < len(self.tokens) and self.tokens[self.position][0] == ")":
                raise self.error(f"{name} takes {' '.join(signature.inputs)}; got {len(parts)} of {len(signature.inputs)}")
            parts.append(self.term(depth + 1) if sort == "E" else self.constant(sort))
        if self.take() != ")":
            raise self.back(f"{name} takes {' '.join(signature.inputs)}; got more")
        if name == "Var":
            return self.atom(str(parts[0]))
        return (name, *parts)

    def atom(self, token: str) -> Tree:
        """An input by its name, or a class by its number."""
        try:
            name = _unquoted(token)
        except OptionError as error:
            raise self.back(str(error)) from None
        if name in self.inputs:
            return ("Var", name)
        if re.fullmatch(r"#\d+", name) and self.classes:
            if int(name[1:]) in self.classes:
                return (CLASS, int(name[1:]))
            raise self.back(f"no class {name}; wanted #0 to #{max(self.classes)}")
        near = get_close_matches(name, self.inputs, n=1)
        hint = f"did you mean {near[0]}?" if near else f"wanted an input ({', '.join(self.inputs)}) or a term in parentheses"
        raise self.back(f"no input {name!r}; {hint}")

    def constant(self, sort: str) -> Constant:
        """A constant of a base sort."""
        token = self.take()
        if token in ("(", ")"):
            raise self.back(f"got {token!r}, wanted a constant ({sort})")
        try:
            return parse_constant(token, sort)
        except OptionError as error:
            raise self.back(str(error)) from None
