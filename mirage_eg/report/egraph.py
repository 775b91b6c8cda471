"""Views of an oracle's e-graph: boxes of classes as SVG, tables of growth, and egglog's interactive widget.

The source is the oracle's frozen table; the search needs none of this.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.oracle import Key, Oracle, children_of, show_node
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.report.tables import table

_LINE, _CHARACTER, _GAP, _PER_ROW = 16, 6.7, 24, 5  # pixels; boxes in a row
_INK, _FILL, _MARKED, _EDGE, _ROOT_EDGE = "#17212f", "#f4f6fa", "#ffe9a8", "#7f8ba0", "#b3261e"


@dataclass(frozen=True, slots=True)
class EGraphView:
    """The e-graph of an oracle; `marked` classes are highlighted, at most `boxes` classes are drawn."""

    oracle: Oracle
    marked: frozenset[int] = frozenset()
    boxes: int = 40
    names: tuple[str, ...] = ()  # of the program's inputs; x0, x1 … if not given

    def named(self, names: Sequence[str]) -> "EGraphView":
        """The view with these names of the program's inputs."""
        return replace(self, names=tuple(names))

    def mark(self, expression: Expression, term: int | None = None) -> "EGraphView":
        """The view with the classes of a candidate's terms highlighted: all of them, or one."""
        terms = range(len(expression.terms)) if term is None else (term,)
        classes = (self.oracle.class_of(expression, position) for position in terms)
        return replace(self, marked=frozenset(class_ for class_ in classes if class_ is not None))

    def classes(self) -> dict[int, list[Key]]:
        """The e-nodes of every class, the roots' classes first, then by distance from them."""
        nodes: dict[int, list[Key]] = {}
        for key, class_ in self.oracle.table.items():
            nodes.setdefault(class_, []).append(key)
        order = dict.fromkeys(class_ for class_ in self.oracle.outputs if class_ in nodes)
        queue = list(order)
        for class_ in queue:
            for key in nodes[class_]:
                for child in children_of(self.oracle, key):
                    if child not in order:
                        order[child] = None
                        queue.append(child)
        return {class_: sorted(nodes[class_], key=str) for class_ in (order | dict.fromkeys(nodes))}

    def growth(self) -> tuple[tuple[int, int], ...]:
        """E-nodes after each iteration."""
        return tuple(enumerate(self.oracle.saturation.growth, 1))

    def matches(self) -> tuple[tuple[str, int], ...]:
        """How often each law matched, most first."""
        return self.oracle.saturation.matches

    def widget(self) -> Any:
        """The interactive widget of egglog, with this e-graph.

        Raises:
            UnsupportedError: a package that the widget needs is missing.
        """
        try:
            from egglog.visualizer_widget import VisualizerWidget
        except ImportError as error:
            raise UnsupportedError(
                f"egglog's widget cannot be shown: {error}; install anywidget and ipython (pip install anywidget ipython), "
                "or display the view itself, which needs neither"
            ) from None
        return VisualizerWidget(egraphs=[self.to_json()])

    def to_json(self) -> str:
        """The e-graph in the format of egraph-serialize, which egglog's widget reads."""
        nodes: dict[str, dict[str, Any]] = {}
        first: dict[int, str] = {}  # the format names a child by a node of its class
        for number, (_, class_) in enumerate(self.oracle.table.items()):
            first.setdefault(class_, f"n{number}")
        for number, (key, class_) in enumerate(self.oracle.table.items()):
            children = [first[child] for child in children_of(self.oracle, key)]
            nodes[f"n{number}"] = {
                "op": _label(self.oracle, key),
                "children": children,
                "eclass": f"c{class_}",
                "cost": 1.0,
                "subsumed": False,
            }
        roots = [f"c{class_}" for class_ in dict.fromkeys(self.oracle.outputs) if class_ in first]
        return json.dumps({"nodes": nodes, "root_eclasses": roots, "class_data": {f"c{it}": {"type": "E"} for it in first}})

    def _repr_html_(self) -> str:
        """The picture, then growth by iteration and matches by law as tables."""
        matched = [row for row in self.matches() if row[1]]
        return f"{self._repr_svg_()}{table(('iteration', 'e-nodes'), self.growth())}{table(('law', 'matches'), matched)}"

    def _repr_svg_(self) -> str:
        """One box for each e-class with its e-nodes; roots are outlined, marked classes filled, the others counted."""
        classes = self.classes()
        svg: list[str] = []
        x = y = row_height = width = 0.0
        for number, (class_, keys) in enumerate(list(classes.items())[: self.boxes]):
            root = class_ in self.oracle.outputs
            lines = [f"class {class_}{' (root)' if root else ''}", *(show_node(self.oracle, key, self.names) for key in keys)]
            frame = _size(lines)
            if number and number % _PER_ROW == 0:
                x, y, row_height = 0.0, y + row_height + _GAP, 0.0
            fill, edge = _MARKED if class_ in self.marked else _FILL, _ROOT_EDGE if root else _EDGE
            svg.append(f"<g>{_box(lines, frame, (x, y), fill, edge, True)}</g>")
            x += frame[0] + _GAP
            row_height, width = max(row_height, frame[1]), max(width, x)
        y += row_height
        if hidden := len(classes) - self.boxes if self.boxes < len(classes) else 0:
            words = [f"and {hidden} more class{'es' if hidden > 1 else ''}"]
            svg.append(_box(words, _size(words), (0.0, y + _GAP), _FILL, _FILL, False))
            y += _GAP + _size(words)[1]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 4:.0f}" height="{y + 4:.0f}" '
        style = f'font-family="monospace" font-size="11" fill="{_INK}">'
        return f"{head}{style}{''.join(svg)}</svg>"


def _label(oracle: Oracle, key: Key) -> str:
    name, *arguments = key
    constants = (str(it) for it, sort in zip(arguments, oracle.sorts[str(name)], strict=True) if sort != "E")
    return " ".join([str(name), *constants])


def _box(lines: list[str], frame: tuple[float, float], corner: tuple[float, float], fill: str, edge: str, bold: bool) -> str:
    """A rectangle of a size at a corner with lines of text in it."""
    (width, height), (x, y) = frame, corner
    attributes = f'x="{x + 2:.0f}" y="{y + 2:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [f'<rect {attributes} rx="4" fill="{fill}" stroke="{edge}" stroke-width="{2 if edge == _ROOT_EDGE else 1}"/>']
    for row, line in enumerate(lines, 1):
        weight = ' font-weight="bold"' if bold and row == 1 else ""
        parts.append(f'<text x="{x + 10:.0f}" y="{y + 2 + _LINE * row:.0f}"{weight}>{escape(line)}</text>')
    return "".join(parts)


def _size(lines: list[str]) -> tuple[float, float]:
    return _CHARACTER * max(map(len, lines)) + 16, _LINE * len(lines) + 10
