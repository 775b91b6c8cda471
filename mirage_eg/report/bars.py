"""Bars of times: µGraphs against each other and against lines that say what is possible and what there was."""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_eg.report import svg

_ROW, _WIDTH, _TOP = 24.0, 860.0, 44.0
NUMBER = 96.0  # room for the number behind a bar


@dataclass(frozen=True, slots=True)
class Bar:
    """One time in microseconds; `other` draws it in the paler colour of what it is compared with."""

    label: str
    us: float
    other: bool = False


def column(labels: Sequence[str]) -> float:
    """Where the bars of these labels begin."""
    return 16 + max(map(len, labels), default=0) * svg.LETTER + 12


def bar(x: float, y: float, length: float, colour: str) -> str:
    """One horizontal bar, in a row that begins at y; none where there is no length."""
    return svg.rectangle(x, y + 3, length, 17, colour, round=3, edge=False) if length else ""


def number(x: float, y: float, words: str, colour: str = "ink", lines: Sequence[float] = ()) -> str:
    """What is written behind a bar that ends at x; on a ground of its own where one of the vertical lines would cross it."""
    crossed = any(x < at < x + 12 + len(words) * svg.LETTER for at in lines)
    ground = svg.rectangle(x + 2, y + 3, 8 + len(words) * svg.LETTER, 17, "card", round=3, edge=False) if crossed else ""
    return ground + svg.write(x + 6, y + 15, words, colour=colour)


def bars(shown: Sequence[Bar], marks: Sequence[tuple[str, float]], title: str) -> str:
    """Horizontal bars as SVG, with a dashed line and its name for each mark, in the order given."""
    left = column([one.label for one in shown])
    width = max(_WIDTH, left + 420)
    scale = (width - left - NUMBER) / max([*(one.us for one in shown), *(us for _, us in marks), 1e-9])
    bottom = _TOP + _ROW * len(shown)
    ends = [(_TOP + _ROW * row, left + max(1.0, one.us * scale), one) for row, one in enumerate(shown)]
    lines = [left + us * scale for _, us in marks]
    parts = [svg.write(16, 24, title, bold=True)]
    for y, end, one in ends:
        parts.append(svg.write(left - 12, y + 15, one.label, anchor="end"))
        parts.append(bar(left, y, end - left, "other" if one.other else "bar"))
    for place, ((label, us), x) in enumerate(zip(marks, lines, strict=True)):
        y = bottom + 20 + 18 * place
        parts.append(svg.line([(x, _TOP - 4), (x, y - 10)], "floor", width=1.5, dashed=True))
        words = f"{label}: {us:.1f} µs"
        before = x + len(words) * svg.LETTER > width - 8
        parts.append(svg.write(x, y + 2, words, colour="muted", anchor="end" if before else "start"))
    parts += [number(end, y, f"{one.us:.1f} µs", lines=lines) for y, end, one in ends]
    return svg.picture(width, bottom + 18 * len(marks) + 16, "".join(parts), title)
