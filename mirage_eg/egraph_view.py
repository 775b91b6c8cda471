"""An oracle's e-graph to look at: boxes of classes as SVG, tables of growth, and why an expression is kept or pruned.

Everything is read off the frozen table; nothing here is needed by the search.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape

from mirage_eg.expression import Expression, op_of
from mirage_eg.ir.ops import OPS
from mirage_eg.laws import Apply, Law, Literal, Pattern, Variable
from mirage_eg.oracle import Key, Oracle, spellings
from mirage_eg.rulebook import Rulebook

_LINE, _CHARACTER, _GAP, _PER_ROW = 16, 6.6, 28, 5  # pixels; boxes in a row


@dataclass(frozen=True, slots=True)
class EGraphView:
    """The e-graph of an oracle; `marked` classes are highlighted, at most `boxes` classes are drawn."""

    oracle: Oracle
    marked: frozenset[int] = frozenset()
    boxes: int = 40

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
        order = [class_ for class_ in dict.fromkeys(self.oracle.outputs) if class_ in nodes]
        for class_ in order:
            for key in nodes[class_]:
                order += [child for child in _children(key) if child not in order]
        return {class_: sorted(nodes[class_], key=str) for class_ in [*order, *(c for c in nodes if c not in order)]}

    def growth(self) -> tuple[tuple[int, int], ...]:
        """E-nodes after each iteration."""
        return tuple(enumerate(self.oracle.saturation.growth, 1))

    def matches(self) -> tuple[tuple[str, int], ...]:
        """How often each law matched, most first."""
        return self.oracle.saturation.matches

    def _repr_html_(self) -> str:
        """Growth per iteration and matches per law, as tables beside the picture."""
        return (
            f"{self._repr_svg_()}{_table(('iteration', 'e-nodes'), self.growth())}{_table(('law', 'matches'), self.matches())}"
        )

    def _repr_svg_(self) -> str:
        """One box per e-class with its e-nodes inside; roots are outlined, marked classes filled, the rest counted."""
        classes = self.classes()
        shown = dict(list(classes.items())[: self.boxes])
        svg: list[str] = []
        x = y = row_height = width = 0.0
        for place, (class_, keys) in enumerate(shown.items()):
            lines = [f"class {class_}", *map(show_node, keys)]
            box_width, box_height = _CHARACTER * max(map(len, lines)) + 16, _LINE * len(lines) + 10
            if place and place % _PER_ROW == 0:
                x, y, row_height = 0.0, y + row_height + _GAP, 0.0
            svg += _box(class_, lines, x, y, box_width, box_height, class_ in self.oracle.outputs, class_ in self.marked)
            x += box_width + _GAP
            row_height, width = max(row_height, box_height), max(width, x)
        y += row_height
        if hidden := len(classes) - len(shown):
            y += _LINE + 8
            svg.append(f'<text x="4" y="{y:.0f}">and {hidden} more classes</text>')
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 8:.0f}" height="{y + 8:.0f}" '
        style = 'font-family="monospace" font-size="11">'
        return f"{head}{style}{''.join(svg)}</svg>"


def show_node(key: Key) -> str:
    """An e-node as text: children are class numbers."""
    name, *arguments = key
    children = _children(key)
    constants = arguments[: len(arguments) - len(children)]
    return " ".join([str(name), *map(str, constants), *(f"#{child}" for child in children)])


def _children(key: Key) -> tuple[int, ...]:
    name, *arguments = key
    op = op_of(str(name))
    return tuple(int(child) for child in arguments[len(arguments) - OPS[op].arity[0] :]) if op is not None else ()


def _box(class_: int, lines: list[str], x: float, y: float, width: float, height: float, root: bool, marked: bool) -> list[str]:
    fill, edge = ("#ffe9a8" if marked else "#f7f7f7"), ("#b3261e" if root else "#999")
    box = f'<rect x="{x + 2:.0f}" y="{y + 2:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4" fill="{fill}" '
    result = [f'<g id="class{class_}">{box}stroke="{edge}" stroke-width="{2 if root else 1}"/>']
    for place, line in enumerate(lines, 1):
        weight = ' font-weight="bold"' if place == 1 else ""
        text = escape(line + (" (root)" if root and place == 1 else ""))
        result.append(f'<text x="{x + 10:.0f}" y="{y + _LINE * place:.0f}"{weight}>{text}</text>')
    return [*result, "</g>"]


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    def row(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an expression is kept: e-nodes from a root down to its class, each with what put it there; or where it dies."""

    kept: bool
    steps: tuple[tuple[str, str], ...]  # an e-node, and the law, or the program, that put it into its class

    def __str__(self) -> str:
        head = "kept: it is part of the program by" if self.kept else "pruned at"
        return "\n".join([head, *(f"  {node}  [{reason}]" for node, reason in self.steps)])


def explain(oracle: Oracle, expression: Expression, term: int, rulebook: Rulebook, program: Expression) -> Explanation:
    """Why the oracle for `program` keeps a term of `expression`, or the first of its parts that it prunes."""
    classes: list[int | None] = []
    for position, item in enumerate(expression.terms[: term + 1]):
        children = [classes[child] for child in item.children]
        class_ = None
        if None not in children:
            class_ = oracle.class_of(expression, position)
            if class_ is None and _is_part(expression, term, position):
                node = show_node((item.constructor, *item.constants, *children))  # type: ignore[arg-type]
                return Explanation(False, ((node, "no expression that the laws make equal to the program has this e-node"),))
        classes.append(class_)
    goal = classes[term]
    if goal is None:
        raise AssertionError("some part of a pruned term is pruned first")
    given = {
        (item.constructor, *item.constants, *(oracle.class_of(program, child) for child in item.children))
        for item in program.terms
    }
    finder = _Finder(oracle, rulebook)
    steps = [(show_node(key), "the program" if key in given else finder.reason(key)) for key in _path(oracle, goal)]
    return Explanation(True, tuple(steps) or (("the program itself", "the program"),))


def _is_part(expression: Expression, term: int, position: int) -> bool:
    needed = {term}
    for place in range(term, position, -1):
        if place in needed:
            needed.update(expression.terms[place].children)
    return position in needed


def _path(oracle: Oracle, goal: int) -> list[Key]:
    """A shortest chain of e-nodes from a root to the class `goal`."""
    above: dict[int, list[Key]] = {}
    by_class: dict[int, list[Key]] = {}
    for key, class_ in oracle.table.items():
        by_class.setdefault(class_, []).append(key)
    frontier = list(oracle.outputs)
    above = {class_: [] for class_ in frontier}
    for class_ in frontier:
        for key in by_class.get(class_, ()):
            for child in _children(key):
                if child not in above:
                    above[child] = [*above[class_], key]
                    frontier.append(child)
    return above[goal]


class _Finder:
    """Finds a law that puts an e-node into its class: its right side matches the node, its left side another of the class."""

    def __init__(self, oracle: Oracle, rulebook: Rulebook) -> None:
        matched = {name for name, _ in oracle.saturation.matches}
        self.laws = [law for law in rulebook.laws if law.sides and any(name in matched for name in spellings(law.name))]
        self.nodes: dict[int, list[Key]] = {}
        self.oracle = oracle
        for key, class_ in oracle.table.items():
            self.nodes.setdefault(class_, []).append(key)

    def reason(self, key: Key) -> str:
        """The name of the law."""
        class_ = self.oracle.table[key]
        for law in self.laws:
            for left, right in _ways(law):
                for bound in self._match_node(right, key, {}):
                    if any(True for _ in self._match(left, class_, bound)):
                        return law.name
        return "several laws together"

    def _match(self, pattern: Pattern, value: object, bound: dict[str, object]) -> Iterator[dict[str, object]]:
        match pattern:
            case Variable(name):
                if bound.setdefault(name, value) == value:
                    yield bound
            case Literal(literal):
                if literal == value:
                    yield bound
            case Apply() if isinstance(value, int):
                for key in self.nodes.get(value, ()):
                    yield from self._match_node(pattern, key, dict(bound))

    def _match_node(self, pattern: Pattern, key: Key, bound: dict[str, object]) -> Iterator[dict[str, object]]:
        if not isinstance(pattern, Apply) or pattern.name != key[0] or len(pattern.arguments) != len(key) - 1:
            return
        found = [dict(bound)]
        for argument, value in zip(pattern.arguments, key[1:], strict=True):
            found = [longer for shorter in found for longer in self._match(argument, value, dict(shorter))]
        yield from found


def _ways(law: Law) -> Iterator[tuple[Pattern, Pattern]]:
    assert law.sides is not None
    left, right = law.sides
    yield left, right
    if law.form == "birewrite":
        yield right, left
