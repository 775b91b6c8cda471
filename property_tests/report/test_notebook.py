"""What objects show in a notebook, and the charts of reports: well-formed, on a card, everything within it."""

import json
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.triton.compile import compile_source
from mirage_eg.egraph.explain import explain
from mirage_eg.egraph.expression import express, splits
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.oracle import Limits, Oracle, build_oracle
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.saturation_history import saturation_history
from mirage_eg.egraph.soundness.check_file import Report
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.graph_optimizer.optimize_graph import OptimizedGraph
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.lab.bench.rule_ablation import Ablation
from mirage_eg.lab.bench.rule_comparison import Comparison
from mirage_eg.lab.bench.rule_impact import Impact
from mirage_eg.lab.published_models import WrittenModel
from mirage_eg.optimizer.layouts import ChosenLayouts, choose_layouts
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.report_sections import BufferSummary, Memory
from mirage_eg.pipeline.run.result import Result
from mirage_eg.report import svg
from mirage_eg.report.bars import Bar, bars
from mirage_eg.report.draw import kernel_steps, to_svg
from mirage_eg.report.memory import memory_svg
from mirage_eg.report.notebook import HTML_FORMATTERS, SVG_FORMATTERS, is_shown_by_fields, register_formatters
from mirage_eg.report.roofline import RooflinePoint, kernel_points, roofline
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.structure_search import SearchResult, search
from mirage_eg.testing import block_graphs
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Verdict
from property_tests.optimizer.test_layouts import H100, columns_reader
from property_tests.report.test_draw import texts
from property_tests.support.programs import rms_linear


def everything() -> dict[type, Any]:
    """One object of every kind that a person meets on the way of a small program."""
    program = rms_linear()
    primitive = expand(program)
    axes = infer_axes(primitive)
    rulebook = load_rules("indexed")
    target = express(primitive, axes, splits(axes)[0], "indexed")
    oracle = build_oracle(rulebook, target)
    result = optimize("p", program, Options(device="cpu", jobs=1, top=2, cache=False))
    best = result.candidates[0]
    graph = mi.new_kernel_graph()
    tensor = graph.new_input((4, 4), name="X")
    graph.mark_output(graph.relu(tensor), "O")
    block = mi.new_threadblock_graph((2,))
    block.new_output(block.relu(block.new_input(tensor, (0,))), (0,))
    met = [
        program,
        primitive,
        axes,
        rulebook,
        target,
        oracle,
        oracle.saturation,
        search(primitive, axes, rulebook),
        result,
        best,
    ]
    met += [best.verdict, best.float_check, best.compile, tensor, block, explain(oracle, target, 1, rulebook, target)]
    met += [optimize_mugraph(best.graph, H100), choose_layouts(columns_reader(), H100), Reference(program), Options(), H100]
    met += [
        *compile_source(best.source, "sm_90"),
        *predict(best.graph, H100),
        *kernel_points(best.graph, H100),
        TileLimits(1 << 17),
    ]
    met += [mi.Dim("n", max=8), WrittenModel(program, program.input_names[:1])]
    met += [saturation_history(rulebook, target, Limits())]
    met += [search(expand(WORKLOADS["gqa"](1)), infer_axes(expand(WORKLOADS["gqa"](1))), rulebook).split_reductions[0]]
    return {type(it): it for it in [*within(met), graph]} | {mi.KernelGraph: graph}


def within(objects: Iterable[Any]) -> Iterator[Any]:
    """Objects, and those in their fields."""
    for it in objects:
        if isinstance(it, tuple | list):
            yield from within(it[:3])
        elif type(it).__module__.startswith("mirage_eg"):
            yield it
            yield from within(getattr(it, field.name) for field in (fields(it) if is_dataclass(it) else ()))


DISPLAY = DisplayFormatter()
register_formatters(DISPLAY)


def display(it: Any) -> str:
    """What IPython shows of an object: SVG or HTML."""
    data, _ = DISPLAY.format(it, include={"image/svg+xml", "text/html"})
    return "".join(data.values())


def displayed(kind: type) -> bool:
    """Whether IPython shows more of a kind than its repr."""
    own = is_shown_by_fields(kind) or hasattr(kind, "_repr_html_") or hasattr(kind, "_repr_svg_")
    return own or any(name_of(part) in SVG_FORMATTERS | HTML_FORMATTERS for part in kind.__mro__)


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("mirage_eg.")


@pytest.fixture(scope="module")
def met() -> dict[type, Any]:
    return everything()


def test_registered_names_are_those_of_classes() -> None:
    for name in [*SVG_FORMATTERS, *HTML_FORMATTERS]:
        kind = pkgutil.resolve_name(f"mirage_eg.{name}")
        assert isinstance(kind, type) and name_of(kind) == name  # the module that defines it


def test_every_registered_kind_is_displayed(met: dict[type, Any]) -> None:
    kinds = {name_of(kind): it for kind, it in met.items()}
    for name in SVG_FORMATTERS.keys() - {"graph_optimizer.optimize_graph.OptimizedGraph", "partial_equivalence.mutants.Mutant"}:
        assert ElementTree.fromstring(display(kinds[name])).tag.endswith("svg")
    records = [it for kind, it in met.items() if name_of(kind) not in HTML_FORMATTERS and is_shown_by_fields(kind)]
    assert len(records) > 12 and all("<table>" in display(it) for it in records)
    elsewhere = {"egraph.soundness.check_file.Report", "frontend.coverage.Coverage", "api.SizedMuGraph"}  # own tests
    for name in HTML_FORMATTERS:
        if name not in elsewhere:
            assert "<table>" in display(kinds[name]) or "<svg" in display(kinds[name])


def test_an_object_of_another_package_is_left_alone() -> None:
    class Own:
        def _repr_html_(self) -> str:
            return "<b>own</b>"

    assert display(Path()) == "" and not displayed(Path)
    assert display(Own()) == "<b>own</b>" and display(Own) == ""


def test_a_result_shows_its_funnel_and_its_times(met: dict[type, Any]) -> None:
    [shown] = [display(it) for kind, it in met.items() if kind.__name__ == "Result"]
    assert "search funnel" in shown and "predicted by the cost model" in shown


@given(block_graphs())
def test_a_block_graph_alone_is_drawn_too(block: Graph) -> None:
    picture = to_svg(block)
    ElementTree.fromstring(picture)
    assert "block graph   grid" in picture


LATER = {"OptimizedGraph": OptimizedGraph}  # results whose modules are loaded where they are asked for
NAMES = st.text("abµ<& 12", min_size=1, max_size=30)
TIMES = st.floats(0.01, 1e5)


def on_card(picture: str) -> list[tuple[float, float, float, float]]:
    """Frames of all texts, each of which is on the card."""
    root = ElementTree.fromstring(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    frames = []
    anchors = {element.text: element.get("text-anchor", "start") for element in root.iter() if element.tag.endswith("text")}
    for tag, x, y, words in texts(root):
        if tag == "text":
            long = len(words) * 12 * 0.602
            left = x - {"start": 0.0, "middle": long / 2, "end": long}[anchors[words]]
            assert left >= 0 and left + long <= width + 1e-6 and 0 <= y - 10 and y + 3 <= height, words
            frames.append((left, y - 10, left + long, y + 3))
    return frames


COLOURS = st.sampled_from(["bar", "other", "bad"])


@given(
    st.lists(st.builds(Bar, NAMES, TIMES, COLOURS), max_size=8),
    st.lists(st.tuples(NAMES, TIMES), max_size=2),
    st.dictionaries(COLOURS, NAMES.map(lambda name: 8 * name)),
)
def test_bars_stay_on_their_card(shown: list[Bar], marks: list[tuple[str, float]], legend: dict[str, str]) -> None:
    on_card(bars(shown, marks, "title", legend=legend))


@given(
    st.lists(
        st.builds(RooflinePoint, st.sampled_from(["kernel 1", "program"]), st.floats(1, 1e12), st.floats(1, 1e15), TIMES),
        max_size=4,
    ),
    st.sampled_from(list(DEVICES.values())),
)
def test_a_roofline_stays_on_its_card(shown: list[RooflinePoint], device: Any) -> None:
    on_card(roofline(shown, device.memory_bandwidth, device.matrix_rate, "roof"))


def test_labels_of_near_points_do_not_hide_each_other() -> None:
    near = [RooflinePoint(f"kernel {i}", 1e6, 1e8 * (1 + i / 50), 5.0) for i in range(4)]
    frames = on_card(roofline(near, 3e12, 7e14, "roof"))[-4:]
    for (a, b, c, d), (e, f, g, h) in combinations(frames, 2):
        assert not (a < g and e < c and b < h and f < d)


@given(st.integers(1, 4), st.data())
def test_every_buffer_of_a_plan_is_on_its_picture(count: int, data: st.DataObject) -> None:
    graph = WORKLOADS["qknorm"](1)
    steps = [*kernel_steps(graph)]
    buffers = []
    for number in range(count):
        first, last = sorted(data.draw(st.tuples(st.sampled_from(steps), st.sampled_from(steps))))
        buffers.append(BufferSummary(f"t{number}", data.draw(st.integers(1, 10**7)), 0, (first, last)))
    total = sum(buffer.bytes for buffer in buffers)
    plan = Memory(total, total, 1, 1, False, tuple(buffers))
    picture = memory_svg(plan, graph)
    on_card(picture)
    assert picture.count('class="mg-loop"') == count


def test_a_layout_by_columns_is_listed_with_what_it_saves() -> None:
    layouts = choose_layouts(columns_reader(), H100)
    [one] = layouts.choices
    shown = HTML_FORMATTERS["optimizer.layouts.ChosenLayouts"](layouts)
    assert all(f">{cell}</td>" in shown for cell in ("[1, 0]", f"{one.us:.2f}", f"{one.row_major_us:.2f}")), shown
    assert one.us < one.row_major_us


def test_every_colour_of_a_picture_has_one_for_dark_pages() -> None:
    style = svg.dark_style()
    assert all(f".mg-{name} {{" in style and f".mg-{name}-line {{" in style for name in svg.PALETTE)
    assert all(light != dark for light, dark in svg.PALETTE.values())


ROOT = Path(__file__).parents[2]
INTERNAL = {  # what graphs are written with, checked by and seen as, what laws are derived by, and numbers
    *("BeingWritten", "Builder", "Checker", "NestedGraph", "Derivable"),
    *("Ratio", "SizeExpression"),
}


def imported() -> dict[str, Any]:
    """What README, pages and notebooks import from the package, what it exports, and what the reference lists."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = [found for text in texts for found in re.findall(r"^from (mirage_eg[\w.]*) import ([\w, ]+)", text, re.MULTILINE)]
    met = {f"{module}.{name.strip()}" for module, names in lines for name in names.split(",")}
    met |= {f"mirage_eg.{name}" for name in mi.__all__}
    for entry in re.findall(r"^::: (\S+)", "\n".join(texts), re.MULTILINE):
        listed = pkgutil.resolve_name(entry)
        inside = vars(listed).items() if isinstance(listed, ModuleType) else ()
        met |= {f"{entry}.{name}" for name, it in inside if public(name, it, entry)} or {entry}
    return {name: pkgutil.resolve_name(name) for name in sorted(met)}


def public(name: str, it: Any, module: str) -> bool:
    return not name.startswith("_") and getattr(it, "__module__", None) == module


def kinds_of(hint: Any) -> Iterator[type]:
    """The classes in an annotation."""
    if isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from kinds_of(part)


def test_whatever_a_person_gets_from_the_documented_functions_shows_itself() -> None:
    kinds: dict[type, str] = {}
    for name, it in imported().items():
        results = kinds_of(get_type_hints(it, localns=LATER).get("return")) if callable(it) else [type(it)]
        found = [it] if isinstance(it, type) else results
        kinds |= {kind: name for kind in found if kind.__module__.startswith("mirage_eg")}
    assert len(kinds) > 40
    for kind, name in kinds.items():
        if not (issubclass(kind, Enum | Exception | tuple) or kind.__name__ in INTERNAL):
            assert displayed(kind), f"{name}: {kind}"


def test_the_fields_of_those_are_shown_too() -> None:
    """Records within the records that a search, a check and a verdict hand back."""
    waiting, seen = (
        [Result, SearchResult, Report, Impact, Ablation, Comparison, Verdict, ChosenLayouts, Rulebook, Oracle],
        set[type](),
    )
    while waiting:
        kind = waiting.pop()
        if kind in seen or not kind.__module__.startswith("mirage_eg") or issubclass(kind, Enum):
            continue
        seen.add(kind)
        assert displayed(kind), kind
        if is_dataclass(kind) and kind is not Law:  # which is shown as its text
            waiting += [part for hint in get_type_hints(kind).values() for part in kinds_of(hint)]
    assert len(seen) > 20
