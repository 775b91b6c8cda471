"""Tables as HTML, for what notebooks show."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import Any


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table with one row of headings."""
    return f"<table>{_row(head, 'th')}{''.join(_row(row, 'td') for row in rows)}</table>"


_LONGEST = 400  # letters of a value


def record(it: Any) -> str:
    """The fields of a dataclass with their values, shortened where they are long."""
    return table((type(it).__name__, ""), [(field.name, _short(getattr(it, field.name))) for field in fields(it)])


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


_STYLE = 'style="text-align: left; white-space: pre-line"'


def _row(cells: Iterable[object], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag} {_STYLE}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
