"""Bar charts: one bar for each time or ratio, with vertical lines for lower bounds and baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mirage_eg.report import svg

_ROW, _WIDTH, _TOP = 24.0, 860.0, 44.0
NUMBER = 96.0  # width of the number after a bar


@dataclass(frozen=True, slots=True)
class Bar:
    """One time in microseconds, in a colour of the palette; baselines are `other`, which is paler."""

    label: str
    us: float
    colour: str = "bar"


def column(labels: Sequence[str]) -> float:
    """The x at which the bars of these labels begin."""
    return 16 + max(map(len, labels), default=0) * svg.LETTER + 12


def bar(x: float, y: float, length: float, colour: str) -> str:
    """One horizontal bar, in a row that begins at y; empty if the length is 0."""
    return svg.rectangle(x, y + 3, length, 17, colour, round=3, edge=False) if length else ""


def number(x: float, y: float, words: str, colour: str = "ink", lines: Sequence[float] = ()) -> str:
    """The number after a bar that ends at x; on a background of its own if one of the vertical lines would cross it."""
    crossed = any(x < line < x + 12 + len(words) * svg.LETTER for line in lines)
    background = svg.rectangle(x + 2, y + 3, 8 + len(words) * svg.LETTER, 17, "card", round=3, edge=False) if crossed else ""
    return background + svg.write(x + 6, y + 15, words, colour=colour)


def bars(
    times: Sequence[Bar],
    marks: Sequence[tuple[str, float]],
    title: str,
    words: str = "{:.1f} µs",
    legend: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Horizontal bars as SVG, with a dashed line and its name for each mark, in the order given; `words` formats numbers.

    `legend`: what the colours of bars mean.
    """
    left = column([one.label for one in times])
    width = max(_WIDTH, left + 420, *(54 + len(meaning) * svg.LETTER for meaning in legend.values()))
    scale = (width - left - NUMBER) / max([*(one.us for one in times), *(us for _, us in marks), 1e-9])
    bottom = _TOP + _ROW * len(times)
    ends = [(_TOP + _ROW * row, left + max(1.0, one.us * scale), one) for row, one in enumerate(times)]
    lines = [left + us * scale for _, us in marks]
    parts = [svg.write(16, 24, title, bold=True)]
    for y, end, one in ends:
        parts.append(svg.write(left - 12, y + 15, one.label, anchor="end"))
        parts.append(bar(left, y, end - left, one.colour))
    for row, ((label, us), x) in enumerate(zip(marks, lines, strict=True)):
        y = bottom + 20 + 18 * row
        parts.append(svg.line([(x, _TOP - 4), (x, y - 10)], "floor", width=1.5, dashed=True))
        named = f"{label}: {words.format(us)}"
        before = x + len(named) * svg.LETTER > width - 8
        parts.append(svg.write(x, y + 2, named, colour="muted", anchor="end" if before else "start"))
    parts += [number(end, y, words.format(one.us), lines=lines) for y, end, one in ends]
    below = bottom + 18 * len(marks) + 8
    for row, (colour, meaning) in enumerate(legend.items()):
        y = below + 20 * row
        parts += [svg.rectangle(16, y, 14, 14, colour, round=3, edge=False), svg.write(38, y + 12, meaning, colour="muted")]
    return svg.picture(width, below + 20 * len(legend) + 8, "".join(parts), title)
