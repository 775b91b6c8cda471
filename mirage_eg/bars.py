"""Bars of times: µGraphs against each other and against lines that say what is possible and what there was."""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_eg import svg

_ROW, _WIDTH, _NUMBER, _TOP = 24.0, 860.0, 96.0, 44.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One time in microseconds; `other` draws it in the paler colour of what it is compared with."""

    label: str
    us: float
    other: bool = False


def bars(shown: Sequence[Bar], marks: Sequence[tuple[str, float]], title: str) -> str:
    """Horizontal bars as SVG, with a dashed line and its name for each mark, in the order given."""
    left = 16 + max((len(bar.label) for bar in shown), default=0) * svg.LETTER + 12
    width = max(_WIDTH, left + 420)
    scale = (width - left - _NUMBER) / max([*(bar.us for bar in shown), *(us for _, us in marks), 1e-9])
    bottom = _TOP + _ROW * len(shown)
    parts = [svg.write(16, 24, title, bold=True)]
    for place, bar in enumerate(shown):
        y = _TOP + place * _ROW
        parts.append(svg.write(left - 12, y + 15, bar.label, anchor="end"))
        parts.append(
            svg.rectangle(left, y + 3, max(1.0, bar.us * scale), _ROW - 7, "other" if bar.other else "bar", round=3, edge=False)
        )
        parts.append(svg.write(left + max(1.0, bar.us * scale) + 6, y + 15, f"{bar.us:.1f} µs"))
    for place, (label, us) in enumerate(marks):
        x, y = left + us * scale, bottom + 20 + 18 * place
        parts.append(svg.line([(x, _TOP - 4), (x, y - 10)], "floor", width=1.5, dashed=True))
        words = f"{label}: {us:.1f} µs"
        before = x + len(words) * svg.LETTER > width - 8
        parts.append(svg.write(x, y + 2, words, colour="muted", anchor="end" if before else "start"))
    return svg.picture(width, bottom + 18 * len(marks) + 16, "".join(parts), title)
