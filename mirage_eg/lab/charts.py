"""Line charts with a logarithmic vertical axis, as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from mirage_eg.report import svg

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900.0, 420.0, 70.0, 44.0, 50.0
_LEGEND = 300.0


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


__all__ = ["Curve", "line_chart"]
