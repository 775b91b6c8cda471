"""SVG elements: boxes, lines, text and one palette for light and dark pages.

An element has its colour on a light page as an attribute, and a class by which a stylesheet can set another: `dark_style()`
does so. Without a stylesheet, all text is on filled boxes, legible on any page.
"""

from collections.abc import Sequence
from html import escape

FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
LETTER = 7.4  # width of one letter at 12 px, rounded up
LINE = 16.0
PAD = 10.0

PALETTE = {  # name: colour on a light page, colour on a dark one
    "ink": ("#17212f", "#e8edf5"),
    "muted": ("#55637a", "#a3b0c4"),
    "edge": ("#7f8ba0", "#8795ab"),
    "card": ("#f6f8fb", "#1b212b"),
    "frame": ("#dfe5ee", "#29313f"),
    "boundary": ("#ffffff", "#10151c"),
    "library": ("#e7e0f7", "#463a6e"),
    "view": ("#f7f4fd", "#2c2740"),
    "thread": ("#f3f6fa", "#3a4557"),
    "once": ("#d5edf0", "#1d5258"),
    "prologue": ("#fdecc8", "#5e4a17"),
    "loop": ("#cfe5fc", "#1e4c78"),
    "epilogue": ("#d3f1d6", "#235c2d"),
    "bar": ("#3f7fd0", "#5d9cec"),
    "other": ("#a9c1e4", "#3d5f8f"),
    "bad": ("#d9a3a0", "#8c4a46"),
    "floor": ("#c2410c", "#fb923c"),
}

Size = tuple[float, float]


def text_size(words: Sequence[str]) -> Size:
    """The size of lines of text with their margin."""
    return max(len(word) for word in words) * LETTER + 2 * PAD, len(words) * LINE + PAD


def lines_of(x: float, y: float, words: Sequence[str], bold: bool = False) -> str:
    """Lines of text below each other, the first one bold if asked for; (x, y) is the upper left corner."""
    return "".join(write(x, y + LINE * (row + 1), word, bold=bold and row == 0) for row, word in enumerate(words))


def write(x: float, y: float, word: str, *, colour: str = "ink", anchor: str = "start", bold: bool = False) -> str:
    """One line of text; y is its base line, `anchor` start, middle or end."""
    weight = ' font-weight="bold"' if bold else ""
    align = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="mg-{colour}" fill="{PALETTE[colour][0]}"{weight}{align} xml:space="preserve">'
        f"{escape(word)}</text>"
    )


def rectangle(x: float, y: float, width: float, height: float, colour: str, *, edge: bool = True, round: float = 6) -> str:
    """A box of a colour of the palette."""
    attributes = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round:g}"'
    stroke = f' stroke="{PALETTE["edge"][0]}"' if edge else ""
    return f'<rect {attributes} class="mg-{colour}" fill="{PALETTE[colour][0]}"{stroke}/>'


def line(points: Sequence[tuple[float, float]], colour: str = "edge", *, width: float = 1.0, dashed: bool = False) -> str:
    """A polyline through the points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<polyline points="{path}" fill="none" class="mg-{colour}-line" stroke="{PALETTE[colour][0]}"'
        f' stroke-width="{width:g}"{dashes}/>'
    )


def picture(width: float, height: float, body: str, title: str, *, card: bool = True) -> str:
    """A standalone SVG document; on a filled card unless all elements have boxes of their own."""
    background = rectangle(0.5, 0.5, width - 1, height - 1, "card", round=8) if card else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}" font-size="12" role="img">\n'
        f"<title>{escape(title)}</title>\n{background}{body}</svg>\n"
    )


def dark_style() -> str:
    """The stylesheet rules that give pictures the colours of a dark page."""
    return " ".join(
        f".mg-{name} {{ fill: {dark} }} .mg-{name}-line {{ stroke: {dark} }}" for name, (_, dark) in PALETTE.items()
    )
