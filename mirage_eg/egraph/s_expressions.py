"""S-expressions with the place of each part, so that errors name it: the texts of terms of elements and of whole tensors."""

import re
from dataclasses import dataclass

from mirage_eg.ir.errors import OptionError

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[()]|[^\s()"]+)')
_DEEPEST = 400  # parentheses


@dataclass(frozen=True, slots=True)
class SExpression:
    """An atom, with its quotes if it has any, or parentheses with the parts in them, from one character to another."""

    text: str  # "(" of parentheses
    start: int
    end: int
    parts: tuple["SExpression", ...] = ()

    @property
    def is_atom(self) -> bool:
        """Whether it has no parentheses."""
        return self.text != "("


def error_at(character: int, message: str) -> OptionError:
    """The error that names a character, counted from 0."""
    return OptionError(f"term, character {character + 1}: {message}")


def read_parts(text: str) -> SExpression:
    """The one S-expression of a text. Raises OptionError: the text is none; the message has the place in it."""
    opened: list[tuple[int, list[SExpression]]] = [(0, [])]
    last = position = 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if found is None:
            raise error_at(position, "the quote that opens here is never closed")
        token, last, position = found[1], found.start(1), found.end()
        if token == "(":
            opened.append((last, []))
            if len(opened) > _DEEPEST + 1:
                raise error_at(last, f"got more than {_DEEPEST} parentheses in one another")
        elif token != ")":
            opened[-1][1].append(SExpression(token, last, last))
        elif len(opened) > 1:
            start, parts = opened.pop()
            opened[-1][1].append(SExpression("(", start, last, tuple(parts)))
        else:
            raise error_at(last, "got ')', wanted a term")
    [(_, found_parts), *unclosed] = opened
    if unclosed:
        raise error_at(last, "the text ends within a term; is a parenthesis missing?")
    if not found_parts:
        raise OptionError("term: got an empty text, wanted a term such as (Mul X W)")
    first, *rest = found_parts
    if rest:
        raise error_at(rest[0].start, f"got {rest[0].text!r} after the end of the term")
    return first
