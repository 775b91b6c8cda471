"""E-graphs to look at: the picture is well-formed and counts what it leaves out; explanations are true of the oracle."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from egglog.visualizer_widget import VisualizerWidget

from mirage_eg.egraph.chain_checker import check_chain
from mirage_eg.egraph.explain import explain
from mirage_eg.egraph.expression import Expression, Term
from mirage_eg.egraph.oracle import Oracle, build_oracle
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_file import targets
from mirage_eg.frontend.workloads import PAPER, WORKLOADS
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.report.egraph import EGraphView

RULES = load_rules("indexed")


def example(name: str = "rmsnorm") -> tuple[Expression, Oracle]:
    _, target = targets(WORKLOADS[name](1), "indexed")[-1]
    return target, build_oracle(RULES, target)


@pytest.mark.parametrize("name", [pytest.param(it, marks=[pytest.mark.slow] * (it in ("ntrans", "qknorm"))) for it in PAPER])
def test_the_picture_has_a_box_for_each_class_up_to_its_limit_and_a_count(name: str) -> None:
    _, oracle = example(name)
    for boxes in (5, 1000):
        picture = replace(EGraphView(oracle), boxes=boxes)._repr_svg_()
        root = ElementTree.fromstring(picture)
        groups = [item for item in root.iter() if item.tag.endswith("}g") and item.get("class") is None]
        total = len(EGraphView(oracle).classes())
        assert len(groups) == min(boxes, total)
        assert (f"and {total - boxes} more classes" in picture) == (total > boxes)
        assert "(root)" in picture


def test_every_e_node_is_drawn_and_marked_classes_are_filled() -> None:
    target, oracle = example()
    classes = EGraphView(oracle).classes()
    assert sum(map(len, classes.values())) == len(oracle.table)
    plain, marked = (
        replace(view, boxes=1000)._repr_svg_() for view in (EGraphView(oracle), EGraphView(oracle).mark(target, 3))
    )
    assert plain.count('mg-prologue"') == 0
    assert marked.count('mg-prologue"') == 1


def test_growth_and_matches_are_those_of_the_saturation() -> None:
    _, oracle = example()
    assert [nodes for _, nodes in EGraphView(oracle).growth()] == list(oracle.saturation.growth)
    page = EGraphView(oracle)._repr_html_()
    assert all(f">{count}</td>" in page for _, count in EGraphView(oracle).matches())


@pytest.mark.parametrize("name", PAPER)
def test_each_subexpression_of_the_program_has_a_path_of_e_nodes_to_a_root(name: str) -> None:
    target, oracle = example(name)
    for term in range(len(target.terms)):
        explanation = explain(oracle, target, term, RULES, target)
        assert explanation.kept and explanation.chain is not None and not explanation.chain.steps


def test_what_is_pruned_is_explained_by_the_first_part_that_is() -> None:
    target, oracle = example()
    x = target.inputs[0]
    terms = (*target.terms, Term("Exp", (), (x,)), Term("Mul", (), (x, len(target.terms))))
    explanation = explain(oracle, replace(target, terms=terms), len(terms) - 1, RULES, target)
    assert not explanation.kept
    assert explanation.form == "(Exp x0)"
    assert oracle.class_of(replace(target, terms=terms), len(terms) - 1) is None


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_kept_form_is_explained_by_steps_from_the_program(mirrored: bool) -> None:
    target, oracle = example()
    gain, weight = target.inputs[1:]
    operands = (weight, gain) if mirrored else (gain, weight)
    terms = (*target.terms, Term("Mul", (), operands))
    explanation = explain(oracle, replace(target, terms=terms), len(terms) - 1, RULES, target, ("X", "G", "W"))
    part = "(Mul W G)" if mirrored else "(Mul G W)"
    chain = explanation.chain
    assert explanation.kept and chain is not None and part in chain.end and part not in chain.start
    check_chain(chain, RULES)
    assert ("mul commutes" in chain.laws) == mirrored, "a mirror image is no reason of the product itself"
    assert "mul associates" in str(explanation)


@pytest.mark.parametrize("name", PAPER)
def test_the_widget_of_egglog_is_given_every_e_node_and_class(name: str) -> None:
    _, oracle = example(name)
    widget = EGraphView(oracle).widget()
    assert isinstance(widget, VisualizerWidget)
    [text] = widget.egraphs
    graph = json.loads(text)
    assert len(graph["nodes"]) == len(oracle.table)
    assert set(graph["class_data"]) == {node["eclass"] for node in graph["nodes"].values()}
    assert set(graph["root_eclasses"]) <= set(graph["class_data"])
    for node, key in zip(graph["nodes"].values(), oracle.table, strict=True):
        children = [graph["nodes"][child]["eclass"] for child in node["children"]]
        assert f"c{oracle.table[key]}" == node["eclass"]
        assert children == [f"c{child}" for child in key[len(key) - len(children) :]]


def test_without_anywidget_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "egglog.visualizer_widget", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(UnsupportedError, match="pip install anywidget"):
        EGraphView(example()[1]).widget()


def test_a_class_that_only_a_constructor_of_the_users_reaches_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "twice.egg"
    path.write_text(
        """(constructor Twice (E i64) E)
(rule ((= e (Exp x)) (= a (axes x))) ((union e (Twice x 2))) :name "helper")
(rule ((below e) (= e (Twice x n))) ((below x)) :ruleset subexpression :name "below twice")
"""
    )
    _, target = targets(WORKLOADS["gqa"](1), "indexed")[0]
    view = EGraphView(build_oracle(load_rules("indexed", [path]), target))
    assert "Twice #" in replace(view, boxes=1000)._repr_svg_()
    assert '"op": "Twice 2"' in view.to_json()
