"""The charts of experiments as SVG: bars in groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_eg.report import svg
from mirage_eg.report.bars import NUMBER, bar, column, number

_BAR_ROW, _HEADING, _BARS_WIDTH, _BARS_TOP = 22.0, 30.0, 860.0, 40.0


@dataclass(frozen=True, slots=True)
class BarRow:
    """One value with the words after its bar; `other` is drawn in the paler colour."""

    label: str
    value: float
    words: str
    other: bool = False


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Rows that are compared with each other."""

    heading: str
    rows: tuple[BarRow, ...]


def grouped_bars(groups: Sequence[BarGroup], title: str) -> str:
    """The groups below each other, as SVG."""
    left = column([row.label for group in groups for row in group.rows])
    longest = max((len(row.words) for group in groups for row in group.rows), default=0)
    width = max(_BARS_WIDTH, left + 300 + longest * svg.LETTER, 32 + len(title) * svg.LETTER)
    available = width - left - max(NUMBER, 16 + longest * svg.LETTER)
    parts, y = [svg.write(16, 24, title, bold=True)], _BARS_TOP
    for group in groups:
        largest = max((row.value for row in group.rows), default=0)
        parts.append(svg.write(16, y + 18, group.heading, colour="muted"))
        y += _HEADING
        for row in group.rows:
            length = available * row.value / largest if largest > 0 else 0.0
            parts.append(svg.write(left - 12, y + 15, row.label, anchor="end"))
            parts.append(bar(left, y, length, "other" if row.other else "bar"))
            parts.append(number(left + length, y, row.words))
            y += _BAR_ROW
    return svg.picture(width, y + 12, "".join(parts), title)
