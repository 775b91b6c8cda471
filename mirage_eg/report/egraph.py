"""Views of an oracle's e-graph: a drawing with a cluster for each class, tables of growth, and egglog's interactive widget.

The source is the oracle's frozen table; the search needs none of this.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.oracle import Key, Oracle, children_of, show_node
from mirage_eg.egraph.saturation_history import SaturationHistory
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.reached import reached
from mirage_eg.report.box_layout import PlacedBoxes, Point, Size, place_boxes
from mirage_eg.report.svg import LINE, PAD, PALETTE, dark_style, lines_of, picture, rectangle, text_size
from mirage_eg.report.tables import table

ENODES = 12  # of a class that are drawn
_ROW = 3  # e-nodes side by side
_GAP, _MARGIN = 8.0, 16.0
_CLASS_GAP = 56.0  # between the layers of classes


@dataclass(frozen=True, slots=True)
class EGraphView:
    """The e-graph of an oracle; `marked` classes are highlighted, at most `boxes` classes are drawn."""

    oracle: Oracle
    marked: frozenset[int] = frozenset()
    boxes: int = 40
    names: tuple[str, ...] = ()  # of the program's inputs; x0, x1 … if not given
    cost: Callable[[Key], float] | None = None  # of an e-node, in the JSON; 1 if not given

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
        roots = [class_ for class_ in self.oracle.outputs if class_ in nodes]
        order = reached(roots, lambda class_: [child for key in nodes[class_] for child in children_of(self.oracle, key)])
        return {class_: sorted(nodes[class_], key=str) for class_ in dict.fromkeys([*order, *nodes])}

    def words(self, keys: Sequence[Key]) -> tuple[str, ...]:
        """E-nodes as text, with the numbers of their operands' classes."""
        return tuple(show_node(self.oracle, key, self.names) for key in keys)

    def growth(self) -> tuple[tuple[int, int], ...]:
        """E-nodes after each iteration."""
        return tuple(enumerate(self.oracle.saturation.growth, 1))

    def matches(self) -> tuple[tuple[str, int], ...]:
        """How often each law matched, most first."""
        return self.oracle.saturation.matches

    def widget(self) -> Any:
        """The interactive widget of egglog, with this e-graph.

        Raises UnsupportedError: a package that the widget needs is missing.
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
        """The e-graph in the format of egraph-serialize, which egglog's widget reads, with names of inputs and costs."""
        nodes: dict[str, dict[str, Any]] = {}
        first: dict[int, str] = {}  # the format names a child by a node of its class
        for number, (_, class_) in enumerate(self.oracle.table.items()):
            first.setdefault(class_, f"n{number}")
        for number, (key, class_) in enumerate(self.oracle.table.items()):
            children = [first[child] for child in children_of(self.oracle, key)]
            nodes[f"n{number}"] = {
                "op": self.label(key),
                "children": children,
                "eclass": f"c{class_}",
                "cost": 1.0 if self.cost is None else self.cost(key),
                "subsumed": False,
            }
        roots = [f"c{class_}" for class_ in dict.fromkeys(self.oracle.outputs) if class_ in first]
        return json.dumps({"nodes": nodes, "root_eclasses": roots, "class_data": {f"c{it}": {"type": "E"} for it in first}})

    def label(self, key: Key) -> str:
        """The op of an e-node with its constants, or the name of an input."""
        if key[0] == "Var" and self.names:
            return show_node(self.oracle, key, self.names).removeprefix("input ")
        constants = (it for it, sort in zip(key[1:], self.oracle.sorts[str(key[0])], strict=True) if sort != "E")
        return " ".join(map(str, (key[0], *constants)))

    def _repr_html_(self) -> str:
        """The drawing in a frame that scrolls, then growth by iteration and matches by law as tables."""
        matched = [row for row in self.matches() if row[1]]
        drawing = f'<div style="overflow: auto; max-height: 80vh">{self.to_svg()}</div>'
        return f"{drawing}{table(('iteration', 'e-nodes'), self.growth())}{table(('law', 'matches'), matched)}"

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def to_svg(self) -> str:
        """A cluster for each class with its e-nodes, and a line from each e-node to the classes of its operands.

        Roots and marked classes have a colour. Classes and e-nodes beyond the limits are counted.
        """
        drawn = {}
        for class_, keys in self.classes().items():
            root, marked = class_ in self.oracle.outputs, class_ in self.marked
            head = f"class #{class_}{' (root)' if root else ''}"
            enodes = [(show_node(self.oracle, key, self.names), children_of(self.oracle, key)) for key in keys]
            drawn[class_] = DrawnClass(head, enodes, "prologue" if marked else "epilogue" if root else "frame")
        return classes_svg(drawn, self.boxes)


@dataclass(frozen=True, slots=True)
class DrawnClass:
    """A class to draw: its head, its e-nodes as words with the classes of their operands, its colour, e-nodes in bold."""

    head: str
    enodes: Sequence[tuple[str, Sequence[int]]]
    colour: str = "frame"
    bold: frozenset[int] = frozenset()


def classes_svg(classes: Mapping[int, DrawnClass], boxes: int = 40) -> str:
    """A drawing of the first `boxes` classes as clusters; further ones are counted."""
    clusters = {class_: _cluster(it) for class_, it in list(classes.items())[:boxes]}
    body, (width, height) = _arranged(clusters)
    if hidden := len(classes) - len(clusters):
        words = f"and {hidden} more class{'es' if hidden > 1 else ''}"
        body += lines_of(_MARGIN, height, [words])
        height += LINE + PAD
    count = sum(len(it.enodes) for it in classes.values())
    title = f"e-graph: {counted(count, 'e-node')} in {counted(len(classes), 'class', 'classes')}"
    width = max(width, 220.0)
    dark = dark_style().replace(".mg-", ".egraph .mg-")  # of this drawing alone, which may be within a page
    style = f"<style>@media (prefers-color-scheme: dark) {{ {dark} }}</style>"
    card = rectangle(0.5, 0.5, width - 1, height - 1, "card", round=8)
    return picture(width, height, f'{style}<g class="egraph">{card}{body}</g>', title, card=False)


def _cluster(drawn: DrawnClass) -> "_Cluster":
    shown = drawn.enodes if len(drawn.enodes) <= ENODES else drawn.enodes[: ENODES - 1]
    words = [word for word, _ in shown]
    words += [f"+ {len(drawn.enodes) - len(shown)} more"] if len(shown) < len(drawn.enodes) else []
    sizes = [text_size([word]) for word in words]
    rows = [range(start, min(start + _ROW, len(words))) for start in range(0, len(words), _ROW)]
    width = max(max(sum(sizes[at][0] + _GAP for at in row) for row in rows) + _GAP, text_size([drawn.head])[0])
    height = LINE + PAD + len(rows) * (sizes[0][1] + _GAP)
    parts = [rectangle(0, 0, width, height, drawn.colour), lines_of(PAD, 0, [drawn.head], bold=True)]
    ports: list[tuple[float, tuple[int, ...]]] = []
    for line, row in enumerate(rows):
        x, y = _GAP, LINE + PAD + line * (sizes[0][1] + _GAP)
        for at in row:
            bold = at in drawn.bold
            parts.append(rectangle(x, y, *sizes[at], "boundary") + lines_of(x + PAD, y, [words[at]], bold=bold))
            if at < len(shown):
                ports.append(((x + sizes[at][0] / 2) / width, tuple(shown[at][1])))
            x += sizes[at][0] + _GAP
    return _Cluster((width, height), "".join(parts), tuple(ports))


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A class as drawn; `ports` has the place of each e-node, from 0 (left) to 1, with the classes of its operands."""

    size: Size
    body: str
    ports: tuple[tuple[float, tuple[int, ...]], ...]


def _arranged(clusters: dict[int, _Cluster]) -> tuple[str, Size]:
    """The clusters in layers with the lines between them, and the size of the whole."""
    numbers = {class_: number for number, class_ in enumerate(clusters)}
    lines = [
        (numbers[class_], numbers[child], port)
        for class_, cluster in clusters.items()
        for port, children in cluster.ports
        for child in dict.fromkeys(children)
        if child in numbers
    ]
    layers = layers_of(len(clusters), [(source, target) for source, target, _ in lines])
    down = [line for line in lines if layers[line[0]] < layers[line[1]]]
    up = [line for line in lines if layers[line[0]] >= layers[line[1]]]
    sizes, ends = [cluster.size for cluster in clusters.values()], [(source, target) for source, target, _ in down]
    placed = place_boxes(sizes, ends, layers, [(port, 0.5) for _, _, port in down], gap=_CLASS_GAP)
    parts = []
    for (source, target, port), lanes in zip(down, placed.lanes, strict=True):
        start, end = _ends(placed, sizes, source, target, port)
        parts.append(_curve([start, (start[0], placed.floors[source]), *lanes, end]))
    for source, target, port in up:
        start, end = _ends(placed, sizes, source, target, port)
        parts.append(_curve([start, start, end], dashed=True))
    for cluster, (x, y) in zip(clusters.values(), placed.corners, strict=True):
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{cluster.body}</g>\n')
    body = f'<g class="clusters" transform="translate({_MARGIN:g} {_MARGIN:g})">{"".join(parts)}</g>'
    return body, (placed.size[0] + 2 * _MARGIN, placed.size[1] + 2 * _MARGIN)


def _ends(placed: PlacedBoxes, sizes: Sequence[Size], source: int, target: int, port: float) -> tuple[Point, Point]:
    (x, y), (target_x, target_y) = placed.corners[source], placed.corners[target]
    return (x + port * sizes[source][0], y + sizes[source][1]), (target_x + sizes[target][0] / 2, target_y)


def layers_of(count: int, lines: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each box: below all boxes with a line to it, but for lines that close a cycle."""
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in lines:
        targets[source].append(target)
    order: list[int] = []
    state = [0] * count  # 1: on the path, 2: done
    closing: set[tuple[int, int]] = set()

    def visit(box: int) -> None:
        state[box] = 1
        for target in targets[box]:
            if state[target] == 1:
                closing.add((box, target))
            elif state[target] == 0:
                visit(target)
        state[box] = 2
        order.append(box)

    for box in range(count):
        if state[box] == 0:
            visit(box)
    layers = [0] * count
    for box in reversed(order):
        for target in targets[box]:
            if (box, target) not in closing:
                layers[target] = max(layers[target], layers[box] + 1)
    return layers


def _curve(points: Sequence[Point], dashed: bool = False) -> str:
    """A line down through pairs of points, curved between the pairs; dashed where it leads up."""
    (x, y), *rest = points
    path = f"M {x:.1f} {y:.1f}"
    for (x, y), (next_x, next_y) in zip(rest[::2], rest[1::2], strict=True):
        bend = max(24.0, (next_y - y) / 2)
        path += f" L {x:.1f} {y:.1f} C {x:.1f} {y + bend:.1f} {next_x:.1f} {next_y - bend:.1f} {next_x:.1f} {next_y:.1f}"
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{path}" fill="none" class="mg-edge-line" stroke="{PALETTE["edge"][0]}"{dashes}/>\n'


def history_html(history: SaturationHistory) -> str:
    """The sizes after each iteration, what each law added and merged in all, and the same iteration by iteration."""
    sizes = list(zip(range(len(history.nodes)), history.nodes, history.classes, strict=True))
    rows = [(row.iteration, row.law, f"{row.nodes:+}", row.unions) for row in history.rows]
    laws = [(law, f"{nodes:+}", unions) for law, nodes, unions in history.by_law()]
    parts = (
        table(("iteration", "e-nodes", "classes"), sizes),
        table(("law", "e-nodes added", "classes merged"), laws),
        table(("iteration", "law", "e-nodes added", "classes merged"), rows),
    )
    return "".join(f'<div style="overflow-x: auto">{part}</div>' for part in parts)
