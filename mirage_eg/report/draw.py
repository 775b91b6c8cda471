"""Drawings of µGraphs: a kernel graph as SVG or HTML, each block graph in a frame of its own, colours by phase.

All text is on filled boxes and lines are middle grey, so that a drawing is legible on light and dark pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from html import escape

from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, Phase
from mirage_eg.ir.op.moves import VIEWS_IN_ORDER
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.shapes import text
from mirage_eg.ir.threadblock_graph import ThreadblockGraph
from mirage_eg.optimizer.thread_graphs import with_threads
from mirage_eg.report import svg
from mirage_eg.report.box_layout import LAYER_GAP, PlacedBoxes, Point, Size, place_boxes
from mirage_eg.report.svg import PAD, PALETTE, lines_of, rectangle, text_size

_MARGIN = 16.0
_THREAD_GAP = 22.0  # between the layers of a thread graph
_SWAPPED = "⇄"

_PHASES = {Phase.PROLOGUE: "prologue", Phase.LOOP: "loop", Phase.EPILOGUE: "epilogue"}
_LEGEND = {
    "library": "library kernel",
    "view": "view, no kernel",
    "thread": "thread graph: in registers",
    "once": "once, no loop",
    "prologue": "before the loop",
    "loop": "in the loop",
    "epilogue": "after the loop",
}


@dataclass(frozen=True, slots=True)
class _Box:
    """The drawing of one node: its size, SVG relative to its corner, and the ports of lines at its top and bottom."""

    size: Size
    body: str
    entries: tuple[float, ...]  # x of each operand
    exits: tuple[float, ...]  # x of each result


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph that a notebook displays as a drawing."""

    graph: Graph

    def _repr_svg_(self) -> str:
        return to_svg(self.graph)


def picture(graph: Graph | KernelGraph | ThreadblockGraph) -> Picture:
    """The drawing of a graph or of a graph builder, for a notebook."""
    return Picture(graph.graph() if isinstance(graph, KernelGraph | ThreadblockGraph) else graph)


def to_svg(graph: Graph) -> str:
    """The graph as a standalone SVG picture."""
    if graph.level is Level.BLOCK:
        graph = with_threads(graph)
    drawn = _draw(graph, colour="" if graph.level is not Level.THREAD else "thread")
    (width, height), body = drawn.size, drawn.body
    legend, (legend_width, legend_height) = _legend(graph, _SWAPPED in body)
    width, height = max(width, legend_width) + 2 * _MARGIN, height + legend_height + 3 * _MARGIN
    body = (
        f'<g transform="translate({_MARGIN:.1f} {_MARGIN:.1f})">\n{legend}</g>\n'
        f'<g transform="translate({_MARGIN:.1f} {legend_height + 2 * _MARGIN:.1f})">\n{body}</g>\n'
    )
    return svg.picture(width, height, body, _title(graph), card=False)


def to_html(graph: Graph, title: str) -> str:
    """The drawing and the listing as one standalone page."""
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        "<style>:root { color-scheme: light dark } body { font-family: system-ui, sans-serif; margin: 2em }"
        " svg { max-width: 100%; height: auto } pre { overflow-x: auto }</style>\n"
        f"<h1>{escape(title)}</h1>\n{to_svg(graph)}<pre>{escape(str(graph))}</pre>\n</html>\n"
    )


def _title(graph: Graph) -> str:
    if graph.level is Level.BLOCK:
        return _head(graph)
    if graph.level is Level.THREAD:
        return f"thread graph {graph.types[-1]}"
    kernels = len(launches_of(graph).kernels)
    return f"kernel graph: {kernels} kernel{'s' if kernels != 1 else ''}"


def _head(block: Graph) -> str:
    loop = f"loop {block.loop}" if block.loop > 1 else "no loop"
    threads = f"cluster of {block.cluster} × {block.threads}" if block.cluster > 1 else f"{block.threads}"
    return f"block graph   grid {'×'.join(map(str, block.grid))}   {loop}   {threads} threads"


def _legend(graph: Graph, swapped: bool) -> tuple[str, Size]:
    """A row of the colours in the drawing, with labels."""
    used: set[str] = set()
    blocks = [graph]
    if graph.level is Level.KERNEL:
        compute = [item.op for item in graph.nodes if item.kind not in (Kind.BOUNDARY, Kind.GRAPH)]
        used |= {"view" if op in VIEWS_IN_ORDER else "library" for op in compute}
        blocks = [with_threads(item["graph"]) for item in graph.nodes if item.op == "block"]
    elif graph.level is Level.THREAD:
        blocks = []
    for block in blocks:
        used |= {_colour(block, values[0]) for item, values in block.numbered() if values and item.op != "input"}
        used |= {"thread"} if any(item.op == "thread" for item in block.nodes) else set()
    labels = [(_title(graph), "frame"), *((label, colour) for colour, label in _LEGEND.items() if colour in used)]
    if swapped:
        labels.append((f"{_SWAPPED} first operand on the right", "boundary"))
    x, parts = 0.0, []
    for label, colour in labels:
        width, height = text_size([label])
        parts.append(rectangle(x, 0, width, height, colour) + lines_of(x + PAD, 0, [label]))
        x += width + 8
    return "".join(parts), (x - 8, text_size(["x"])[1])


def _colour(block: Graph, value: int) -> str:
    return "once" if block.loop == 1 else _PHASES[block.phases[value]]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A graph after layout: its size and SVG, the centres of its inputs and outputs, and its number of crossings."""

    size: Size
    body: str
    inputs: tuple[float, ...]
    outputs: tuple[float, ...]
    crossings: int


def _draw(graph: Graph, sources: Sequence[str] = (), start: Sequence[int] | None = None, colour: str = "") -> _Drawing:
    """Lay a graph out. `sources`: the tensors that its inputs load; `start`: the initial order; `colour`: of a thread graph.

    Twice: after the first layout, block graphs order their inputs, and other boxes their operands, by the lines that arrive.
    """
    pairs = zip(graph.numbered(), _surroundings(graph, sources), strict=True)
    boxes = [_box(graph, item, values, around, colour) for (item, values), around in pairs]
    maker = {value: (at, slot) for at, (_, values) in enumerate(graph.numbered()) for slot, value in enumerate(values)}
    ends = [(maker[operand], (at, slot)) for at, item in enumerate(graph.nodes) for slot, operand in enumerate(item.operands)]
    lines = [(source, target) for (source, _), (target, _) in ends]
    layers = _layers(graph, lines)
    gap = _THREAD_GAP if graph.level is Level.THREAD else LAYER_GAP

    def arrange() -> PlacedBoxes:
        ports = [
            (
                boxes[source].exits[slot] / boxes[source].size[0],
                boxes[target].entries[entry] / boxes[target].size[0] if OPS[graph.nodes[target].op].kind is Kind.GRAPH else 0.5,
            )
            for (source, slot), (target, entry) in ends
        ]
        return place_boxes([box.size for box in boxes], lines, layers, ports, start, gap)

    placement = arrange()
    arrivals: list[list[float]] = [[] for _ in boxes]
    for ((source, slot), (target, _)), lanes in zip(ends, placement.lanes, strict=True):
        arrivals[target].append(lanes[-1][0] if lanes else placement.corners[source][0] + boxes[source].exits[slot])
    for at, ((item, values), around) in enumerate(zip(graph.numbered(), _surroundings(graph, sources), strict=True)):
        if len(item.operands) > 1:
            boxes[at] = _box(graph, item, values, replace(around, arrivals=tuple(arrivals[at])), colour)
    placement = arrange()
    parts = []
    for ((source, slot), (target, entry)), lanes in zip(ends, placement.lanes, strict=True):
        (source_x, source_y), (target_x, target_y) = placement.corners[source], placement.corners[target]
        begin = (source_x + boxes[source].exits[slot], source_y + boxes[source].size[1])
        end = (target_x + boxes[target].entries[entry], target_y)
        parts.append(_line(begin, [(begin[0], placement.floors[source]), *lanes, end]))
    for box, (x, y) in zip(boxes, placement.corners, strict=True):
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{box.body}</g>\n')

    def centres(op: str) -> tuple[float, ...]:
        return tuple(placement.corners[at][0] + boxes[at].size[0] / 2 for at, item in enumerate(graph.nodes) if item.op == op)

    return _Drawing(placement.size, "".join(parts), centres("input"), centres("output"), placement.crossings)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The surroundings of a box: its kernel's number, the tensors that it loads, the x at which each operand arrives."""

    kernel: int = 0
    names: tuple[str, ...] = ()
    arrivals: tuple[float, ...] = ()

    @property
    def swapped(self) -> bool:
        return len(self.arrivals) == 2 and self.arrivals[0] > self.arrivals[1]


def kernel_numbers(graph: Graph) -> dict[int, int]:
    """The numbers of the kernels of a kernel graph in drawings, by the positions of their nodes, in the order of launches."""
    return {at: number for number, launch in enumerate(launches_of(graph).kernels, 1) for at in launch.nodes}


def kernel_steps(graph: Graph) -> dict[int, int]:
    """The numbers of the kernels by the steps at which they are launched, as the lives of buffers count them."""
    return {launch.step: number for number, launch in enumerate(launches_of(graph).kernels, 1)}


def _surroundings(graph: Graph, sources: Sequence[str]) -> Iterator[_Surroundings]:
    """For every node its kernel's number and the tensors that it loads: an input its source, a block graph its operands."""
    names: dict[int, str] = {}
    is_kernel_graph, inputs = graph.level is Level.KERNEL, 0
    kernels, launches = (kernel_numbers(graph), launches_of(graph).at) if is_kernel_graph else ({}, {})
    for at, (item, values) in enumerate(graph.numbered()):
        kernel = kernels.get(at, 0)
        loaded = tuple(names[operand] for operand in item.operands)
        if item.op == "input":
            loaded = (sources[inputs] if sources else item.get("name") or (f"x{inputs}" if is_kernel_graph else ""),)
            inputs += 1
            names |= dict.fromkeys(values, loaded[0])
        elif at in launches and launches[at].kind is LaunchKind.VIEW:
            names |= dict.fromkeys(values, loaded[0])
        else:
            names |= dict.fromkeys(values, f"of kernel {kernel}" if kernel else "prepared")
        yield _Surroundings(kernel, loaded)


def _layers(graph: Graph, lines: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each node: below its operands; inputs of a kernel graph are just above their first use.

    Inputs of a block graph are at the top, its outputs at the bottom.
    """
    layers = [0] * len(graph.nodes)
    for source, target in lines:  # in the order of targets, so sources are final
        layers[target] = max(layers[target], layers[source] + 1)
    last = max(layers)
    for at, item in enumerate(graph.nodes):
        if item.op == "output" and graph.level is not Level.KERNEL:
            layers[at] = last
        elif item.op == "input" and graph.level is not Level.BLOCK:
            layers[at] = min((layers[target] for source, target in lines if source == at), default=1) - 1
    return layers


def _box(graph: Graph, item: Node, values: range, around: _Surroundings, colour: str) -> _Box:
    kind = item.kind
    if graph.level is Level.THREAD and kind is Kind.BOUNDARY:
        dot = f'<circle cx="2" cy="2" r="2" class="mg-ink" fill="{PALETTE["ink"][0]}"/>'
        return _Box((4.0, 4.0), dot, (2.0,) * len(item.operands), (2.0,) * len(values))
    if item.op == "block":
        return _block_box(item, values, around)
    if item.op == "thread":
        return _thread_box(graph, item, values, around)
    words = _words(graph, item, values, around.names)
    swapped = around.swapped
    if swapped and not OPS[item.op].commutative:
        words[0] += f" {_SWAPPED}"
    width, height = text_size(words)
    if kind is Kind.BOUNDARY:
        colour = "boundary"
    elif graph.level is Level.KERNEL:
        colour = "view" if item.op in VIEWS_IN_ORDER else "library"
    elif graph.level is Level.BLOCK:
        colour = _colour(graph, values[0])
    body = rectangle(0, 0, width, height, colour) + lines_of(PAD, 0, words)
    count = len(item.operands)
    entries = tuple(width * (slot + 1) / (count + 1) for slot in range(count))
    return _Box((width, height), body, entries[::-1] if swapped else entries, (width / 2,) * len(values))


def _block_box(item: Node, values: range, around: _Surroundings) -> _Box:
    """A frame around the drawing of the block graph; lines enter above its inputs and leave below its outputs."""
    inner: Graph = with_threads(item["graph"])
    head = [f"kernel {around.kernel}: {_head(inner)}"]
    return _frame(_with_ordered_inputs(inner, around), head, "frame", len(values))


def _thread_box(graph: Graph, item: Node, values: range, around: _Surroundings) -> _Box:
    """A frame around the chain of a thread graph, with the one shape of all its values."""
    head = ["thread graph", str(graph.types[values[0]])]
    return _frame(
        _with_ordered_inputs(item["graph"], _Surroundings(0, (), around.arrivals), _colour(graph, values[0])), head, "thread", 1
    )


def _with_ordered_inputs(inner: Graph, around: _Surroundings, colour: str = "") -> _Drawing:
    """A graph with its inputs in the order of the arriving lines, of two such orders that with fewer crossings."""
    drawn = [_draw(inner, around.names, None, colour)]
    if not around.arrivals:
        return drawn[0]
    inputs = [at for at, item in enumerate(inner.nodes) if item.op == "input"]
    for direction in (1, -1):  # inputs that load the same tensor may be in either order
        slots = sorted(range(len(inputs)), key=lambda slot: (around.arrivals[slot], direction * slot))
        order = [inputs[slot] for slot in slots]
        start = [*order, *(at for at in range(len(inner.nodes)) if at not in order)]
        drawn.append(_draw(inner, around.names, start, colour))

    def crossings(it: _Drawing) -> int:
        ends = list(zip(around.arrivals, it.inputs, strict=True))
        return it.crossings + sum((a - c) * (b - d) < 0 for i, (a, b) in enumerate(ends) for c, d in ends[:i])

    return min(drawn, key=crossings)


def _frame(inner: _Drawing, head: list[str], colour: str, results: int) -> _Box:
    head_width, head_height = text_size(head)
    width = max(inner.size[0] + 2 * _MARGIN, head_width)
    shift = (width - inner.size[0]) / 2
    body = (
        rectangle(0, 0, width, head_height + inner.size[1] + _MARGIN, colour)
        + lines_of(PAD, 0, head, bold=True)
        + f'<g transform="translate({shift:.1f} {head_height:.1f})">\n{inner.body}</g>'
    )
    entries, exits = (tuple(x + shift for x in places) for places in (inner.inputs, inner.outputs[:results]))
    return _Box((width, head_height + inner.size[1] + _MARGIN), body, entries, exits)


def _words(graph: Graph, item: Node, values: range, names: Sequence[str]) -> list[str]:
    """The lines of text in a box: op, maps or constants, shape (but in a thread graph, whose values have one shape)."""
    name = names[0] if item.op == "input" else item.get("name")
    hidden = ("name", "shape", "dtype", "graph", "imap", "fmap", "omap", "strides")
    details = [f"{key} {_attribute(key, value)}" for key, value in item.attributes if key not in hidden]
    words = [" ".join([item.op, *([name] if name else []), *details])]
    for key in ("imap", "fmap", "omap"):
        if item.get(key) is not None:
            words.append(f"{key} {_attribute(key, item[key])}")
    if graph.level is Level.THREAD:
        return words
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
        case _, Fraction() if value.denominator > 10_000:
            return f"{float(value):.6g}"
        case _:
            return str(value)


def _line(start: Point, points: Sequence[Point]) -> str:
    """A line downwards with an arrow head: straight between the boxes of a layer, curved between layers."""
    path = f"M {start[0]:.1f} {start[1]:.1f}"
    for (x, y), (next_x, next_y) in zip(points[::2], points[1::2], strict=True):
        middle = (y + next_y) / 2
        path += f" L {x:.1f} {y:.1f} C {x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
    x, y = points[-1]
    head = f"M {x - 4:.1f} {y - 7:.1f} L {x:.1f} {y:.1f} L {x + 4:.1f} {y - 7:.1f}"
    return f'<path d="{path} {head}" fill="none" class="mg-edge-line" stroke="{PALETTE["edge"][0]}" stroke-width="1.5"/>\n'
