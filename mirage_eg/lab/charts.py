"""The charts of experiments as SVG: curves over a logarithmic axis, and bars in groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from mirage_eg.report import svg
from mirage_eg.report.bars import NUMBER, bar, column, number

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900.0, 420.0, 70.0, 44.0, 50.0
_LEGEND = 300.0
_BAR_ROW, _HEADING, _BARS_WIDTH, _BARS_TOP = 22.0, 30.0, 860.0, 40.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y) with y above 0; the last point of a `cut` curve is a lower bound. `dashed`: figures of others."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    dashed: bool = False
    cut: bool = False


def line_chart(curves: Sequence[Curve], title: str, across: str, up: str) -> str:
    """The curves with a legend; `across` and `up` name the axes."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    low, high = floor(log10(min(ys))), max(ceil(log10(max(ys))), floor(log10(min(ys))) + 1)
    right, bottom = _WIDTH - _LEGEND, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across_share = (x - min(xs)) / max(max(xs) - min(xs), 1e-9)
        up_share = (log10(y) - low) / (high - low)
        return _LEFT + across_share * (right - _LEFT - 20), bottom - up_share * (bottom - _TOP)

    parts = [svg.write(16, 24, title, bold=True), svg.write(_LEFT, _HEIGHT - 12, across, colour="muted")]
    parts.append(svg.write(16, _TOP - 4, up, colour="muted"))
    for power in range(low, high + 1):
        y = place(min(xs), 10.0**power)[1]
        parts.append(svg.line([(_LEFT, y), (right, y)], "frame"))
        parts.append(svg.write(_LEFT - 8, y + 4, f"{10.0**power:g}", anchor="end"))
    for x in sorted(set(xs)):
        parts.append(svg.write(place(x, 10.0**low)[0], bottom + 18, f"{x:g}", anchor="middle"))
    for row, curve in enumerate(curves):
        points = [place(x, y) for x, y in curve.points]
        parts.append(svg.line(points, curve.colour, width=2, dashed=curve.dashed))
        parts += [svg.rectangle(x - 3, y - 3, 6, 6, curve.colour, round=3, edge=False) for x, y in points]
        if curve.cut:
            parts.append(svg.write(points[-1][0], points[-1][1] - 8, "over", anchor="middle"))
        y = _TOP + 22 * row
        parts.append(svg.line([(right + 16, y), (right + 44, y)], curve.colour, width=2, dashed=curve.dashed))
        parts.append(svg.write(right + 52, y + 4, curve.name))
    return svg.picture(_WIDTH, _HEIGHT, "".join(parts), title)


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
