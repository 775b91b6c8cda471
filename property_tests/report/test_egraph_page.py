"""The page of an e-graph: every class and e-node once, commuted copies folded, the extracted term lit, laws named, offline."""

import json
import re
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.egraph.oracle import children_of
from mirage_eg.report.egraph_page import folded


@pytest.fixture(scope="module")
def found() -> mi.EGraph:
    return mi.egraph("rmsnorm", loop="j")


@pytest.fixture(scope="module")
def page(found: mi.EGraph) -> str:
    return found.to_html()


def elements(page: str) -> list[dict[str, Any]]:
    line = next(it for it in page.splitlines() if it.startswith("<script>const DATA = "))
    data: list[dict[str, Any]] = json.loads(line.removeprefix("<script>const DATA = ").removesuffix(";"))["elements"]
    return data


def test_the_page_needs_no_network(page: str) -> None:
    own = page[: page.index("<script>/**")] + page[page.index("<script>const DATA") :]
    assert not re.search(r'(src|href)="?http', page) and "http" not in own
    assert "The Cytoscape Consortium" in page, "its licence stands with it"


def test_every_class_is_a_box_titled_by_its_smallest_term(found: mi.EGraph, page: str) -> None:
    boxes = {it["data"]["id"]: it["data"] for it in elements(page) if it.get("classes", "").startswith("class")}
    assert boxes.keys() == {f"c{class_}" for class_ in found.classes()}
    for class_ in found.classes():
        [smallest] = found.forms(class_, 1)
        tip = boxes[f"c{class_}"]["tip"]
        assert tip.startswith(f"#{class_}: ") and len(tip.split(": ", 1)[1]) == len(smallest)


def test_commuted_copies_of_an_e_node_are_one(found: mi.EGraph, page: str) -> None:
    drawn = [it for it in elements(page) if it.get("classes", "").startswith("enode")]
    distinct = {
        (class_, key[0], *(sorted(children_of(found.oracle, key)) if key[0] == "Mul" else key[1:]))
        for key, class_ in found.oracle.table.items()
    }
    assert len(drawn) == len(distinct) < len(found.oracle.table)
    assert any("commuted cop" in it["data"]["tip"] for it in drawn)
    for keys in found.view().classes().values():
        assert sorted(key for copies in folded(found.oracle, keys) for key in copies) == sorted(keys)


def test_the_extracted_term_is_lit_from_the_output_to_the_inputs(found: mi.EGraph, page: str) -> None:
    lit = {it["data"]["label"] for it in elements(page) if it.get("classes") == "enode lit"}
    [term] = found.extract()
    assert lit >= {"X", "W", "g"}
    assert {label.split()[0] for label in lit} == set(re.findall(r"\(([A-Z]\w*)", term)) | {"X", "W", "g"}


def test_every_e_node_names_the_law_that_made_it(found: mi.EGraph, page: str) -> None:
    tips = [it["data"]["tip"] for it in elements(page) if it.get("classes", "").startswith("enode")]
    laws = {law.name for law in found.rulebook.laws}
    made = {tip.split("made by the law ")[1].split(";")[0] for tip in tips if "made by the law" in tip}
    assert made and made <= laws
    assert sum("of the program" in tip for tip in tips) == len(found.expression.terms)
