"""Tables as HTML, for what notebooks show."""

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table with one row of headings."""
    return f"<table>{_row(head, 'th')}{''.join(_row(row, 'td') for row in rows)}</table>"


_STYLE = 'style="text-align: left; white-space: pre-line"'


def _row(cells: Iterable[object], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag} {_STYLE}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
