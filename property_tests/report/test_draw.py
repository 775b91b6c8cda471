"""Pictures: well-formed, everything of the graph is on them, and nothing stands on anything else."""

from collections.abc import Iterator
from itertools import combinations, count, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.optimizer.thread_graphs import with_threads
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.report.box_layout import COLUMN_GAP, PlacedBoxes, place_boxes
from mirage_eg.report.draw import to_html, to_svg
from mirage_eg.testing import block_graphs

Frame = tuple[float, float, float, float]  # left, top, right, bottom


@st.composite
def drawings(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]], list[int]]:
    """Sizes of boxes, lines between them, and their layers."""
    count = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.tuples(st.floats(5, 300), st.floats(5, 100)), min_size=count, max_size=count))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    lines = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    layers = [0] * count
    for source, target in sorted(lines, key=lambda line: line[1]):
        layers[target] = max(layers[target], layers[source] + draw(st.integers(1, 3)))
    return sizes, lines, layers


def frames(placement: PlacedBoxes, sizes: list[tuple[float, float]]) -> list[Frame]:
    return [(x, y, x + width, y + height) for (x, y), (width, height) in zip(placement.corners, sizes, strict=True)]


def overlap(first: Frame, second: Frame) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


@given(drawings())
def test_boxes_keep_their_distance_and_stay_on_the_picture(
    drawing: tuple[list[tuple[float, float]], list[tuple[int, int]], list[int]],
) -> None:
    sizes, lines, layers = drawing
    placement = place_boxes(sizes, lines, layers)
    boxes = frames(placement, sizes)
    room = COLUMN_GAP / 2 - 1e-6
    for first, second in combinations(boxes, 2):
        assert not overlap(
            (first[0] - room, first[1], first[2] + room, first[3]), (second[0] - room, second[1], second[2] + room, second[3])
        )
    for left, top, right, bottom in boxes:
        assert left >= -1e-6 and top >= 0 and right <= placement.size[0] + 1e-6 and bottom <= placement.size[1] + 1e-6


@given(drawings())
def test_a_line_passes_beside_the_boxes_of_the_layers_between(
    drawing: tuple[list[tuple[float, float]], list[tuple[int, int]], list[int]],
) -> None:
    sizes, lines, layers = drawing
    placement = place_boxes(sizes, lines, layers)
    for (source, target), lanes in zip(lines, placement.lanes, strict=True):
        assert len(lanes) == 2 * (layers[target] - layers[source] - 1)
        for (x, top), (_, bottom) in zip(lanes[::2], lanes[1::2], strict=True):
            assert not any(overlap((x - 1, top, x + 1, bottom), box) for box in frames(placement, sizes))
        heights = [placement.floors[source], *(y for _, y in lanes), placement.corners[target][1]]
        assert all(lower >= upper for upper, lower in pairwise(heights))


def flash_decoding() -> Graph:
    """Attention whose keys are split over the grid, and the kernel that combines the parts."""
    program = new_kernel_graph()
    q, k, v = (
        program.new_input(shape, name=name) for shape, name in (((2, 256, 64), "Q"), ((2, 64, 4096), "K"), ((2, 4096, 64), "V"))
    )
    split = new_threadblock_graph((2, 8), forloop_range=8)
    tile_q, tile_k, tile_v = split.new_input(q, (0, -1)), split.new_input(k, (0, 2), 2), split.new_input(v, (0, 1), 1)
    weights = split.exp(split.matmul(tile_q, tile_k) / 8)
    split.new_output(split.forloop_accum(weights @ tile_v), (0, NEW_DIM))
    split.new_output(split.forloop_accum(weights, "sum", 2), (0, NEW_DIM))
    partial = program.customized([q, k, v], split)
    combine = new_threadblock_graph((2, 16))
    parts = [combine.sum(combine.new_input(x, (1, 2)), 0) for x in partial]
    combine.new_output(combine.reshape(parts[0] / parts[1], (1, 16, 64)), (0, 1))
    [result] = program.customized(partial, combine)
    program.mark_output(program.relu(result), "O & <co>")
    return program.graph()


GRAPHS = {name: workload(1) for name, workload in WORKLOADS.items()} | {"flash decoding": flash_decoding()}


def texts(element: ElementTree.Element, x: float = 0.0, y: float = 0.0) -> Iterator[tuple[str, float, float, str]]:
    """Tag, place on the page and text or size of every rectangle and text of an SVG."""
    for child in element:
        tag = child.tag.split("}")[-1]
        if tag == "g":
            dx, dy = map(float, child.attrib["transform"].removeprefix("translate(").removesuffix(")").split())
            yield from texts(child, x + dx, y + dy)
        elif tag in ("rect", "text"):
            size = f"{child.attrib['width']} {child.attrib['height']}" if tag == "rect" else child.text or ""
            yield tag, x + float(child.attrib["x"]), y + float(child.attrib["y"]), size


@pytest.mark.parametrize("name", GRAPHS)
def test_rectangles_are_apart_or_one_in_the_other_and_hold_their_text(name: str) -> None:
    shapes = list(texts(ElementTree.fromstring(to_svg(GRAPHS[name]))))
    boxes = [(x, y, x + float(size.split()[0]), y + float(size.split()[1])) for tag, x, y, size in shapes if tag == "rect"]
    assert len(boxes) >= len(GRAPHS[name].nodes)
    for first, second in combinations(boxes, 2):
        assert not overlap(first, second) or inside(first, second) or inside(second, first)
    for tag, x, y, words in shapes:
        if tag == "text":  # 0.602 em is the width of a letter in DejaVu Sans Mono, the widest font of the list
            assert any(inside((x, y - 10, x + len(words) * 12 * 0.602, y + 3), box) for box in boxes), words


def inside(inner: Frame, outer: Frame) -> bool:
    return outer[0] <= inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_picture_names_every_op_and_every_tensor(name: str) -> None:
    graph = GRAPHS[name]
    words = {word for tag, _, _, text in texts(ElementTree.fromstring(to_svg(graph))) if tag == "text" for word in text.split()}
    nodes = [item for outer in graph.nodes for item in (outer, *(outer["graph"].nodes if outer.op == "block" else ()))]
    assert {item.op for item in nodes} <= words
    assert {word for item in nodes for word in (item.get("name") or "").split()} <= words


def test_a_page_holds_the_picture_and_the_listing() -> None:
    page = to_html(GRAPHS["flash decoding"], "a <title>")
    assert "<svg" in page and "block graph: grid [2, 8], loop 8" in page
    assert "a &lt;title&gt;" in page and "<title>a <title>" not in page


def test_phrases_say_on_which_side_of_the_product_a_kernel_divides() -> None:
    def rmsnorm(divide_first: bool) -> Graph:
        program = new_kernel_graph()
        x, w = program.new_input((16, 64)), program.new_input((64, 32))
        block = new_threadblock_graph((2,), forloop_range=1 if divide_first else 4)
        tile, weight = block.new_input(x, (-1,), 1), block.new_input(w, (1,), 0)
        norm = block.forloop_accum(tile, "rms", 1)
        if divide_first:
            block.new_output(block.matmul(block.div(tile, block.sqrt(block.mean(block.square(tile), 1))), weight), (1,))
        else:
            block.new_output(block.div(block.forloop_accum(block.matmul(tile, weight)), norm), (1,))
        program.customized([x, w], block)
        return program.graph()

    assert kernel_summary(rmsnorm(divide_first=False)) == "divides after the product, one loop"
    assert kernel_summary(rmsnorm(divide_first=True)) == "divides before the product, no loop"
    assert kernel_summary(WORKLOADS["lora"](1)) == "library 3 matmul, add"


@given(block_graphs())
def test_a_block_with_thread_graphs_computes_what_it_computed(block: Graph) -> None:
    threaded = with_threads(block)
    known: dict[object, int] = {}
    assert written_out(flatten(threaded), known) == written_out(flatten(block), known)
    earlier = [item["graph"] for item in block.nodes if item.op == "thread"]
    for item in threaded.nodes:
        if item.op == "thread" and item["graph"] not in earlier:
            inner = item["graph"]
            made = [values[0] for step, values in inner.numbered() if step.op not in ("input", "output")]
            assert len(made) > 1 and len({inner.types[value].shape for value in made}) == 1


def written_out(graph: Graph, known: dict[object, int]) -> list[object]:
    """The outputs as expressions of the inputs, each expression a number in `known`."""
    numbers: list[int] = []
    outputs: list[object] = []
    inputs = count()
    for item, values in graph.numbered():
        expression = (
            item.op,
            item.attributes,
            next(inputs) if item.op == "input" else tuple(numbers[i] for i in item.operands),
        )
        if values:
            numbers.append(known.setdefault(expression, len(known)))
        else:
            outputs.append(expression)
    return outputs


def test_operands_are_swapped_in_the_picture_with_a_mark_if_order_matters() -> None:
    def drawn(first: str, second: str, op: str) -> str:
        program = new_kernel_graph()
        values = {name: program.new_input((4, 4), name=name) for name in "AB"}
        program.mark_output(getattr(program, op)(values[first], values[second]))
        return to_svg(program.graph())

    assert "⇄" not in drawn("A", "B", "sub") + drawn("B", "A", "add")
    assert "sub ⇄" in drawn("B", "A", "sub") and "⇄ first operand on the right" in drawn("B", "A", "sub")


def test_a_kernel_without_a_loop_computes_nothing_before_one() -> None:
    assert "before the loop" not in to_svg(published_without_loop())
    assert "no loop" in to_svg(published_without_loop())
    assert "before the loop" in to_svg(GRAPHS["flash decoding"]) or "in the loop" in to_svg(GRAPHS["flash decoding"])


def published_without_loop() -> Graph:
    program = new_kernel_graph()
    x = program.new_input((16, 64), name="X")
    block = new_threadblock_graph((4,))
    tile = block.new_input(x, (0,))
    block.new_output(block.div(tile, block.sqrt(block.mean(block.square(tile), 1))), (0,))
    program.mark_output(program.customized([x], block)[0], "O")
    return program.graph()


def test_block_graphs_say_which_tensor_they_load_and_views_are_no_kernels() -> None:
    picture = to_svg(GRAPHS["flash decoding"])
    assert picture.count(">input Q<") == 2 and ">input of kernel 1<" in picture
    assert "kernel graph: 3 kernels" in picture and "kernel 2: block graph" in picture


@given(drawings())
def test_no_initial_order_of_boxes_has_fewer_crossings_than_the_final_one(
    drawing: tuple[list[tuple[float, float]], list[tuple[int, int]], list[int]],
) -> None:
    sizes, lines, layers = drawing
    assert place_boxes(sizes, lines, layers).crossings <= crossings_as_given(lines, layers)


def crossings_as_given(lines: list[tuple[int, int]], layers: list[int]) -> int:
    """Crossings with each layer's boxes in the order of their numbers; only lines from a layer to the next are counted."""
    if any(layers[target] - layers[source] > 1 for source, target in lines):
        return 10**9
    pairs = combinations(lines, 2)
    return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in pairs if layers[a] == layers[c])
