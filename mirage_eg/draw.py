"""Pictures of µGraphs: a kernel graph as SVG or HTML, each block graph in a frame of its own, colours by phase.

Everything written stands on a filled box, and lines are of a middle grey: the picture reads on light and dark pages alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mirage_eg import svg
from mirage_eg.ir.builder import KernelGraph, ThreadblockGraph
from mirage_eg.ir.graph import NEW_DIM, REPLICATED, Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.shapes import text
from mirage_eg.layout import Point, Size, place
from mirage_eg.svg import PAD, PALETTE, lines_of, rectangle, text_size

_MARGIN = 16.0

_PHASES = {Phase.PROLOGUE: "prologue", Phase.LOOP: "loop", Phase.EPILOGUE: "epilogue"}
_PHASE_NAMES = {Phase.PROLOGUE: "before the loop", Phase.LOOP: "in the loop", Phase.EPILOGUE: "after the loop"}


@dataclass(frozen=True, slots=True)
class _Box:
    """What is drawn for one node: a size, SVG relative to its corner, and where lines enter at the top and leave below."""

    size: Size
    body: str
    entries: tuple[float, ...]  # x of each operand
    exits: tuple[float, ...]  # x of each result


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph that a notebook shows as a drawing."""

    graph: Graph

    def _repr_svg_(self) -> str:
        return to_svg(self.graph)


def picture(graph: Graph | KernelGraph | ThreadblockGraph) -> Picture:
    """The drawing of a graph, or of one that is being written, for a notebook."""
    return Picture(graph.graph() if isinstance(graph, KernelGraph | ThreadblockGraph) else graph)


def to_svg(graph: Graph) -> str:
    """The graph as a standalone SVG picture."""
    (width, height), body = _picture(graph)[:2]
    legend, (legend_width, legend_height) = _legend(graph)
    width, height = max(width, legend_width) + 2 * _MARGIN, height + legend_height + 3 * _MARGIN
    body = (
        f'<g transform="translate({_MARGIN:.1f} {_MARGIN:.1f})">\n{legend}</g>\n'
        f'<g transform="translate({_MARGIN:.1f} {legend_height + 2 * _MARGIN:.1f})">\n{body}</g>\n'
    )
    return svg.picture(width, height, body, _title(graph), card=False)


def to_html(graph: Graph, title: str) -> str:
    """The picture and the listing as one standalone page."""
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        "<style>:root { color-scheme: light dark } body { font-family: system-ui, sans-serif; margin: 2em }"
        " svg { max-width: 100%; height: auto } pre { overflow-x: auto }</style>\n"
        f"<h1>{escape(title)}</h1>\n{to_svg(graph)}<pre>{escape(str(graph))}</pre>\n</html>\n"
    )


def _title(graph: Graph) -> str:
    kernels = sum(OPS[item.op].kind is not Kind.BOUNDARY for item in graph.nodes)
    return f"kernel graph: {kernels} kernel{'s' if kernels != 1 else ''}"


def _legend(graph: Graph) -> tuple[str, Size]:
    """A row of labelled colours, only those that the picture uses."""
    labels = [(_title(graph), "frame")]
    if any(OPS[item.op].kind not in (Kind.BOUNDARY, Kind.GRAPH) for item in graph.nodes):
        labels.append(("library kernel", "library"))
    blocks = [item["graph"] for item in graph.nodes if item.op == "block"]
    used = {phase for block in blocks for phase in block.phases}
    labels += [(_PHASE_NAMES[phase], colour) for phase, colour in _PHASES.items() if phase in used]
    x, parts = 0.0, []
    for label, colour in labels:
        width, height = text_size([label])
        parts.append(rectangle(x, 0, width, height, colour) + lines_of(x + PAD, 0, [label]))
        x += width + 8
    return "".join(parts), (x - 8, text_size(["x"])[1])


def _picture(graph: Graph) -> tuple[Size, str, list[Point], list[Point]]:
    """Size and SVG of a graph, and the corners-and-widths of its inputs and outputs as (centre x, y)."""
    boxes = [_box(graph, item, values) for item, values in graph.numbered()]
    maker = {value: (at, slot) for at, (_, values) in enumerate(graph.numbered()) for slot, value in enumerate(values)}
    ends = [(maker[operand], (at, slot)) for at, item in enumerate(graph.nodes) for slot, operand in enumerate(item.operands)]
    lines = [(source, target) for (source, _), (target, _) in ends]
    placement = place([box.size for box in boxes], lines, _layers(graph, lines))
    parts = []
    for ((source, slot), (target, entry)), lanes in zip(ends, placement.lanes, strict=True):
        (source_x, source_y), (target_x, target_y) = placement.corners[source], placement.corners[target]
        start = (source_x + boxes[source].exits[slot], source_y + boxes[source].size[1])
        end = (target_x + boxes[target].entries[entry], target_y)
        parts.append(_line(start, [(start[0], placement.floors[source]), *lanes, end]))
    for box, (x, y) in zip(boxes, placement.corners, strict=True):
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{box.body}</g>\n')

    def points(op: str) -> list[Point]:
        return [
            (placement.corners[at][0] + boxes[at].size[0] / 2, placement.corners[at][1])
            for at, item in enumerate(graph.nodes)
            if item.op == op
        ]

    return placement.size, "".join(parts), points("input"), points("output")


def _layers(graph: Graph, lines: Sequence[tuple[int, int]]) -> list[int]:
    """Layer of each node: below its operands; inputs of a block graph at the top, others just above their first use."""
    layers = [0] * len(graph.nodes)
    for source, target in lines:  # in the order of targets, so sources are final
        layers[target] = max(layers[target], layers[source] + 1)
    last = max(layers)
    for at, item in enumerate(graph.nodes):
        if item.op == "output":
            layers[at] = last
        elif item.op == "input" and graph.level is not Level.BLOCK:
            layers[at] = min((layers[target] for source, target in lines if source == at), default=1) - 1
    return layers


def _box(graph: Graph, item: Node, values: range) -> _Box:
    if item.op == "block":
        return _block_box(item, values)
    words = _words(graph, item, values)
    width, height = text_size(words)
    if OPS[item.op].kind is Kind.BOUNDARY:
        colour = "boundary"
    elif graph.level is Level.BLOCK:
        colour = _PHASES[graph.phases[values[0]]]
    else:
        colour = "library"
    body = rectangle(0, 0, width, height, colour) + lines_of(PAD, 0, words)
    count = len(item.operands)
    entries = tuple(width * (slot + 1) / (count + 1) for slot in range(count))
    return _Box((width, height), body, entries, (width / 2,) * len(values))


def _block_box(item: Node, values: range) -> _Box:
    """A frame around the picture of the block graph; lines enter above its inputs and leave below its outputs."""
    inner: Graph = item["graph"]
    (inner_width, inner_height), picture, inputs, outputs = _picture(inner)
    head = [f"block graph   grid {'×'.join(map(str, inner.grid))}   loop {inner.loop}   {inner.threads} threads"]
    head_width, head_height = text_size(head)
    width = max(inner_width + 2 * _MARGIN, head_width)
    shift = (width - inner_width) / 2
    height = head_height + inner_height + _MARGIN
    body = (
        rectangle(0, 0, width, height, "frame")
        + lines_of(PAD, 0, head, bold=True)
        + f'<g transform="translate({shift:.1f} {head_height:.1f})">\n{picture}</g>'
    )
    return _Box((width, height), body, tuple(x + shift for x, _ in inputs), tuple(x + shift for x, _ in outputs[: len(values)]))


def _words(graph: Graph, item: Node, values: range) -> list[str]:
    """The lines of text in a box: what it is, its maps or constants, its shape."""
    name = f"{item.op} {item['name']}" if item.get("name") else item.op
    details = [
        f"{key} {_attribute(key, value)}"
        for key, value in item.attributes
        if key not in ("name", "shape", "dtype", "graph", "imap", "fmap", "omap")
    ]
    words = [" ".join([name, *details])]
    for key in ("imap", "fmap", "omap"):
        if item.get(key) is not None:
            words.append(f"{key} {_attribute(key, item[key])}")
    if values:
        words.append(str(graph.types[values[0]]))
    elif graph.level is not Level.BLOCK:
        words.append(str(graph.output_types[graph.outputs.index(item)]))
    return words


def _attribute(key: str, value: object) -> str:
    match key, value:
        case (("imap" | "omap"), tuple()):
            return "(" + ", ".join({REPLICATED: "–", NEW_DIM: "new"}.get(target, str(target)) for target in value) + ")"
        case "fmap", -1:
            return "–"
        case _, tuple():
            return text(value)
        case _:
            return str(value)


def _line(start: Point, points: Sequence[Point]) -> str:
    """A line downwards with an arrow head at its end: straight beside boxes, curved between layers."""
    path = f"M {start[0]:.1f} {start[1]:.1f}"
    for (x, y), (next_x, next_y) in zip(points[::2], points[1::2], strict=True):
        middle = (y + next_y) / 2
        path += f" L {x:.1f} {y:.1f} C {x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
    x, y = points[-1]
    head = f"M {x - 4:.1f} {y - 7:.1f} L {x:.1f} {y:.1f} L {x + 4:.1f} {y - 7:.1f}"
    return f'<path d="{path} {head}" fill="none" class="mg-edge-line" stroke="{PALETTE["edge"][0]}" stroke-width="1.5"/>\n'
