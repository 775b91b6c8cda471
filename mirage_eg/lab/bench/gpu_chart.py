"""The picture of the GPU benchmark: for each row how much faster ours is than the best baseline, warm and cold, as SVG."""

from collections.abc import Sequence
from html import escape

from mirage_eg.lab.bench.gpu import Summary

_ROW, _BAR, _LEFT, _WIDTH = 34, 12, 130, 760
_COLOURS = {"warm": "#2b6cb0", "cold": "#90b4d8"}


def picture(rows: Sequence[Summary], title: str) -> str:
    """Bars of ratios, with a line at 1: to its right, ours is faster."""
    known = [row for row in rows if row.warm_ratio is not None and row.cold_ratio is not None]
    widest = max([2.0, *(max(row.warm_ratio or 0, row.cold_ratio or 0) for row in known)])
    scale = (_WIDTH - _LEFT - 90) / widest
    height = 70 + _ROW * len(known)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for place, (name, colour) in enumerate(_COLOURS.items()):
        parts.append(f'<rect x="{_LEFT + 90 * place}" y="30" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 16 + 90 * place}" y="41">{name}</text>')
    for place, row in enumerate(known):
        top = 54 + _ROW * place
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 17}" text-anchor="end">{escape(row.workload)} b{row.batch}</text>')
        for line, (ratio, colour) in enumerate(zip((row.warm_ratio, row.cold_ratio), _COLOURS.values(), strict=True)):
            assert ratio is not None
            y = top + line * _BAR
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{ratio * scale:.1f}" height="{_BAR - 1}" fill="{colour}"/>')
            parts.append(f'<text x="{_LEFT + ratio * scale + 4:.1f}" y="{y + 10}" font-size="10">{ratio:.2f}</text>')
    one = _LEFT + scale
    parts.append(f'<line x1="{one:.1f}" y1="48" x2="{one:.1f}" y2="{height - 14}" stroke="#444" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{one:.1f}" y="{height - 3}" text-anchor="middle" font-size="10">best baseline</text>')
    return "\n".join([*parts, "</svg>", ""])
