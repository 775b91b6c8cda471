"""HTML tables for notebooks and the report; equal rows are merged."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any, TypeVar


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table with one row of headings."""
    return f"<table>{_row(head, 'th')}{''.join(_row(row, 'td') for row in rows)}</table>"


Item = TypeVar("Item")


def cells(shown: Mapping[str, Callable[[Item], object]], item: Item) -> tuple[object, ...]:
    """The cells of an item's row."""
    return tuple(cell(item) for cell in shown.values())


def columns(shown: Mapping[str, Callable[[Item], object]], items: Iterable[Item]) -> str:
    """A table with a row for each item; `shown` has the heading and the cell of each column."""
    return table([*shown], (cells(shown, it) for it in items))


def compiles_text(compiles: bool | None) -> str:
    """Whether a µGraph compiles; None where that was not tried."""
    return "not tried" if compiles is None else "yes" if compiles else "no"


Row = TypeVar("Row", bound=Hashable)


def numbered(rows: Iterable[Row]) -> list[tuple[str, Row]]:
    """Each row once, with the numbers, from 1, of all rows that are equal to it: "2", "3–5, 7"."""
    numbers: dict[Row, list[int]] = {}
    for number, row in enumerate(rows, 1):
        numbers.setdefault(row, []).append(number)
    return [(_ranges(equal), row) for row, equal in numbers.items()]


def _ranges(numbers: Sequence[int]) -> str:
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ", ".join(str(start) if start == end else f"{start}–{end}" for start, end in zip(starts, ends, strict=True))


_LONGEST = 400  # letters of a value


def record(it: Any) -> str:
    """The fields of a dataclass with their values; long ones are shortened."""
    return table((type(it).__name__, ""), [(field.name, _short(getattr(it, field.name))) for field in fields(it)])


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


_STYLE = 'style="text-align: left; white-space: pre-line"'


def _row(cells: Iterable[object], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag} {_STYLE}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
