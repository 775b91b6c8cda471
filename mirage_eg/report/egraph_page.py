"""A page of an e-graph to read: classes as boxes of e-nodes, to pan, zoom and search, without a network.

Its canvas is Cytoscape.js (MIT), the file in `vendored/`. A class has its smallest term as its title. Commuted copies of an
e-node are one. The extracted term is lit. The pointer on an e-node shows the law that made it.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from math import sqrt
from typing import Any

from mirage_eg.egraph.expression import Tree, op_of
from mirage_eg.egraph.forms import constants_of
from mirage_eg.egraph.oracle import Key, Oracle, children_of
from mirage_eg.egraph.saturation_history import SaturationHistory
from mirage_eg.egraph.term_text import show_term
from mirage_eg.ir.ops import OPS
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.reached import reached
from mirage_eg.report.egraph import EGraphView, history_html, layers_of
from mirage_eg.report.svg import LETTER, PALETTE
from mirage_eg.report.tables import table

MOST = 2_000  # e-nodes on a page; classes far from the outputs are left out
_TITLE = 48  # letters of a title
_ROW, _WIDTH, _HEIGHT, _GAP = 3, 24.0, 26.0, 10.0
_SWEEPS = 4


def egraph_page(
    view: EGraphView,
    title: str,
    about: str,
    history: SaturationHistory,
    best: Mapping[int, Tree],
    chosen: Mapping[int, Key],
    laws: Mapping[Key, str],
) -> str:
    """A standalone page, light and dark: the e-graph, the history and the e-nodes of every class.

    `best` has the smallest term of each class and `chosen` its e-node, `laws` the law that made an e-node, if one did.
    """
    classes = view.classes()
    elements, hidden = _elements(view, classes, best, chosen, laws)
    listed = [
        (f"#{it}", show_term(best[it]) if it in best else "", "\n".join(view.words(keys))) for it, keys in classes.items()
    ]
    data = json.dumps({"elements": elements, "palette": PALETTE}).replace("</", "<\\/")
    library = files("mirage_eg.report").joinpath("vendored", "cytoscape.min.js").read_text(encoding="utf-8")
    note = f" {counted(hidden, 'class', 'classes')} far from the outputs are not drawn." if hidden else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<p>{escape(about)}.{note}</p>\n"
        '<p><input id="search" type="search" placeholder="search: an op, a term, a law, #12" size="40"> <span id="hits"></span>'
        ' <button id="fit">whole</button> <button id="best">extracted term</button></p>\n'
        '<div id="egraph"></div>\n<div id="tip" hidden></div>\n'
        f"<h2>Growth</h2>\n{history_html(history)}\n<h2>Classes</h2>\n"
        f'<div style="overflow-x: auto">{table(("class", "smallest term", "e-nodes"), listed)}</div>\n'
        f"<script>{library}</script>\n<script>const DATA = {data};\n{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def folded(oracle: Oracle, keys: Sequence[Key]) -> list[tuple[Key, ...]]:
    """The e-nodes of a class, commuted copies together."""
    found: dict[object, list[Key]] = {}
    for key in keys:
        op, children = op_of(str(key[0])), children_of(oracle, key)
        same = tuple(sorted(children)) if op is not None and OPS[op].commutative else children
        found.setdefault((key[0], constants_of(oracle, key), same), []).append(key)
    return [tuple(copies) for copies in found.values()]


def _elements(
    view: EGraphView,
    classes: Mapping[int, Sequence[Key]],
    best: Mapping[int, Tree],
    chosen: Mapping[int, Key],
    laws: Mapping[Key, str],
) -> tuple[list[dict[str, Any]], int]:
    """The nodes and edges for Cytoscape with their places, and the number of classes that are left out."""
    oracle, shown, count = view.oracle, dict[int, list[tuple[Key, ...]]](), 0
    for class_, keys in classes.items():
        nodes = folded(oracle, sorted(keys, key=laws.__contains__))  # of copies, the program's own
        count += len(nodes)
        if shown and count > MOST:
            break
        shown[class_] = nodes
    lit = _extracted(oracle, chosen)
    titles = {class_: _title(class_, best) for class_ in shown}
    places = _placed(oracle, shown, titles)
    elements: list[dict[str, Any]] = []
    for class_, nodes in shown.items():
        term = show_term(best[class_]) if class_ in best else f"class {class_}"
        kinds = [*(["root"] if class_ in oracle.outputs else []), *(["lit"] if class_ in lit else [])]
        data = {"id": f"c{class_}", "label": titles[class_], "tip": f"#{class_}: {term}"}
        elements.append({"data": data, "classes": " ".join(["class", *kinds, *(["marked"] if class_ in view.marked else [])])})
        for number, copies in enumerate(nodes):
            key = copies[0]
            own, (x, y) = f"c{class_}n{number}", places[class_][number]
            [word] = view.words([key])
            law = f"made by the law {laws[key]}" if key in laws else "of the program"
            also = f"; {counted(len(copies) - 1, 'commuted copy', 'commuted copies')}" if len(copies) > 1 else ""
            entry = {"id": own, "parent": f"c{class_}", "label": view.label(key), "tip": f"{word}: {law}{also}"}
            is_lit = class_ in lit and chosen[class_] in copies
            elements.append({"data": entry, "position": {"x": x, "y": y}, "classes": "enode lit" if is_lit else "enode"})
            for child in dict.fromkeys(children_of(oracle, key)):
                if child in shown:
                    edge = {"id": f"{own}-{child}", "source": own, "target": f"c{child}"}
                    elements.append({"data": edge, "classes": "lit" if is_lit else ""})
    return elements, len(classes) - len(shown)


def _title(class_: int, best: Mapping[int, Tree]) -> str:
    term = show_term(best[class_]) if class_ in best else f"class {class_}"
    return term if len(term) <= _TITLE else f"{term[: _TITLE - 1]}…"


def _extracted(oracle: Oracle, chosen: Mapping[int, Key]) -> set[int]:
    """The classes of the smallest terms of the outputs."""
    found = reached(oracle.outputs, lambda class_: children_of(oracle, chosen[class_]) if class_ in chosen else ())
    return chosen.keys() & {*found}


def _placed(
    oracle: Oracle, shown: Mapping[int, Sequence[tuple[Key, ...]]], titles: Mapping[int, str]
) -> dict[int, list[tuple[float, float]]]:
    """The centre of every e-node: classes in layers, ordered by the mean place of their neighbours; long layers are wrapped."""
    numbers = {class_: number for number, class_ in enumerate(shown)}
    reads = ((numbers[it], child) for it, nodes in shown.items() for key, *_ in nodes for child in children_of(oracle, key))
    lines = [*dict.fromkeys((number, numbers[child]) for number, child in reads if child in numbers)]
    layers = layers_of(len(shown), lines)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for number, layer in enumerate(layers):
        rows[layer].append(number)
    near: list[list[int]] = [[] for _ in shown]
    for source, target in lines:
        near[source].append(target)
        near[target].append(source)
    order = [0.0] * len(shown)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda it: sum(order[other] for other in near[it]) / max(1, len(near[it])))
            for place, number in enumerate(row):
                order[number] = (place + 0.5) / len(row)
    sizes = [_box(oracle, nodes, titles[class_]) for class_, nodes in shown.items()]
    widest = 1.6 * sqrt(sum((width + 4 * _GAP) * (height + 6 * _GAP) for width, height in sizes))
    corners = [(0.0, 0.0)] * len(shown)
    y = 0.0
    for row in rows:
        for line in _wrapped(row, sizes, widest):
            x = -sum(sizes[number][0] + 4 * _GAP for number in line) / 2
            for number in line:
                corners[number] = x, y
                x += sizes[number][0] + 4 * _GAP
            y += max(sizes[number][1] for number in line) + 7 * _GAP
    found: dict[int, list[tuple[float, float]]] = {}
    for (class_, nodes), (left, top), (box, _) in zip(shown.items(), corners, sizes, strict=True):
        width = _node_width(oracle, nodes) + _GAP
        start = left + (box - width * min(_ROW, len(nodes))) / 2
        found[class_] = [
            (start + (place % _ROW + 0.5) * width, top + (place // _ROW + 0.5) * (_HEIGHT + _GAP))
            for place in range(len(nodes))
        ]
    return found


def _wrapped(row: Sequence[int], sizes: Sequence[tuple[float, float]], widest: float) -> list[list[int]]:
    lines: list[list[int]] = [[]]
    width = 0.0
    for number in row:
        if lines[-1] and width + sizes[number][0] > widest:
            lines.append([])
            width = 0.0
        lines[-1].append(number)
        width += sizes[number][0] + 4 * _GAP
    return lines


def _node_width(oracle: Oracle, nodes: Sequence[tuple[Key, ...]]) -> float:
    longest = max(len(" ".join(map(str, (key[0], *constants_of(oracle, key))))) for key, *_ in nodes)
    return _WIDTH + LETTER * longest


def _box(oracle: Oracle, nodes: Sequence[tuple[Key, ...]], title: str) -> tuple[float, float]:
    columns, rows = min(_ROW, len(nodes)), -(-len(nodes) // _ROW)
    return max(columns * (_node_width(oracle, nodes) + _GAP), LETTER * len(title)), rows * (_HEIGHT + _GAP)


_STYLE = """:root { color-scheme: light dark } body { font-family: system-ui, sans-serif; margin: 1rem }
table { border-collapse: collapse } th, td { padding: .2rem .8rem; border-bottom: 1px solid #7f8ba055; vertical-align: top }
td { white-space: pre-line } #egraph { height: 80vh; border: 1px solid #7f8ba0; border-radius: 8px }
#tip { position: fixed; z-index: 9; max-width: 44rem; padding: .4rem .7rem; border-radius: 6px; border: 1px solid #7f8ba0;
background: Canvas; font: 12px ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; pointer-events: none }"""

_SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches, colour = name => DATA.palette[name][dark ? 1 : 0];
const many = DATA.elements.length > 1500;
const cy = cytoscape({
  container: document.getElementById("egraph"), elements: DATA.elements, layout: { name: "preset", fit: true, padding: 20 },
  minZoom: 0.02, maxZoom: 4, autoungrabify: false, hideEdgesOnViewport: many, textureOnViewport: many,
  style: [
    { selector: "node", style: { "font-family": "ui-monospace, Menlo, monospace", "font-size": 12, color: colour("ink"),
      label: "data(label)", "min-zoomed-font-size": 5 } },
    { selector: ".class", style: { shape: "round-rectangle", "background-color": colour("frame"), "border-width": 1,
      "border-color": colour("edge"), "text-valign": "top", "text-margin-y": -3, padding: 8 } },
    { selector: ".enode", style: { shape: "round-rectangle", "background-color": colour("boundary"), "border-width": 1,
      "border-color": colour("edge"), "text-valign": "center", width: e => 16 + 7.4 * e.data("label").length, height: 24 } },
    { selector: ".class.lit", style: { "background-color": colour("epilogue") } },
    { selector: ".class.root", style: { "border-width": 3, "border-color": colour("bar") } },
    { selector: ".class.marked", style: { "background-color": colour("prologue") } },
    { selector: ".enode.lit", style: { "border-width": 3, "border-color": colour("floor"), "font-weight": "bold" } },
    { selector: "edge", style: { width: 1, "line-color": colour("edge"), "target-arrow-color": colour("edge"),
      "target-arrow-shape": "triangle", "arrow-scale": 0.7, "curve-style": many ? "haystack" : "bezier", opacity: 0.55 } },
    { selector: "edge.lit", style: { width: 3, "line-color": colour("floor"), opacity: 1,
      "target-arrow-color": colour("floor") } },
    { selector: ".dim", style: { opacity: 0.12 } },
    { selector: ".hit", style: { "border-width": 4, "border-color": colour("floor") } },
  ],
});
const tip = document.getElementById("tip"), search = document.getElementById("search"), hits = document.getElementById("hits");
cy.on("mouseover", "node", event => { tip.textContent = event.target.data("tip"); tip.hidden = false; });
cy.on("mouseout", "node", () => { tip.hidden = true; });
cy.on("mousemove", event => { const at = event.originalEvent;
  tip.style.left = Math.min(at.clientX + 14, innerWidth - 360) + "px"; tip.style.top = at.clientY + 14 + "px"; });
cy.on("tap", event => { cy.elements().removeClass("dim"); if (event.target === cy || !event.target.isNode()) return;
  const around = event.target.union(event.target.children()).closedNeighborhood();
  cy.elements().difference(around.union(around.parents()).union(around.children())).addClass("dim"); });
function find() {
  const words = search.value.trim().toLowerCase();
  cy.elements().removeClass("hit dim");
  const found = words ? cy.nodes().filter(node => node.data("tip").toLowerCase().includes(words)) : cy.collection();
  found.addClass("hit"); hits.textContent = words ? found.length + " found" : "";
  if (found.length) { cy.elements().difference(found.union(found.parents()).union(found.children())).addClass("dim");
    cy.animate({ fit: { eles: found, padding: 60 }, duration: 200 }); }
}
search.addEventListener("input", find);
document.getElementById("fit").onclick = () => { search.value = ""; find(); cy.fit(undefined, 20); };
document.getElementById("best").onclick = () => { search.value = ""; find(); cy.fit(cy.$(".lit"), 30); };
if (location.hash) { search.value = decodeURIComponent(location.hash.slice(1)); find(); }
"""
