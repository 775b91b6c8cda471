"""Mutants in the e-graph: every e-node equals its class, and extraction takes a mutant exactly where it costs less."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import pytest

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.costs import KernelCosts
from mirage_eg.graph_optimizer.eclasses import EClasses, Types, read_classes
from mirage_eg.graph_optimizer.extraction import extract
from mirage_eg.graph_optimizer.mutant_rules import linear_ops, mutant_rules
from mirage_eg.graph_optimizer.optimize_graph import optimize_graph, saturated_classes
from mirage_eg.graph_optimizer.program_terms import NumberedENode, ProgramTerms
from mirage_eg.graph_optimizer.rewritten_program import rewritten
from mirage_eg.graph_optimizer.saturation import saturate
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.all_sizes import for_all_sizes
from mirage_eg.partial_equivalence.mutants import mutant_of, mutants
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.check_enodes import check_enodes
from property_tests.support.image_models import csrnet_back_end
from property_tests.support.parameters import few

H200 = find_device("h200")


def _convolutions(images: int = 2, height: int = 6, dilation: int = 1) -> Graph:
    """Two convolutions of an image, one with a bias behind it, and relu."""
    graph = KernelGraph()
    x = graph.new_input((images, 2, height, 4), "float32", "x")
    v, w = (graph.new_input((2, 2, 3, 3), "float32", name) for name in ("v", "w"))
    given = {"pads": dilation, "dilations": dilation}
    y = graph.conv2d(x, v, **given) + graph.new_input((2, 1, 1), "float32", "b")
    graph.mark_output(graph.conv2d(graph.relu(y), w, **given))
    return graph.graph()


def _products() -> Graph:
    graph = KernelGraph()
    x, w = graph.new_input((4, 6, 5), "float32", "x"), graph.new_input((5, 3), "float32", "w")
    graph.mark_output(graph.relu(x @ w + graph.new_input((3,), "float32", "b")))
    graph.mark_output(x @ graph.new_input((4, 5, 2), "float32", "z"))
    return graph.graph()


def _merged() -> Graph:
    """Two convolutions of one image with biases: laws merge them, and the merged one has mutants."""
    graph = KernelGraph()
    x = graph.new_input((1, 2, 6, 4), "float32", "x")
    for name in ("v", "w"):
        w, b = graph.new_input((2, 2, 3, 3), "float32", name), graph.new_input((2, 1, 1), "float32", f"{name}b")
        graph.mark_output(graph.conv2d(x, w, pads=1) + b)
    return graph.graph()


def _pyramid(*heights: int) -> Graph:
    """One convolution of images of several heights."""
    graph = KernelGraph()
    w = graph.new_input((2, 2, 3, 3), "float32", "w")
    for height in heights:
        graph.mark_output(graph.conv2d(graph.new_input((2, 2, height, 4), "float32"), w, pads=1))
    return graph.graph()


PROGRAMS: dict[str, Callable[[], Graph]] = {
    "convolutions": _convolutions,
    "dilated": lambda: _convolutions(1, 8, 2),
    "odd": lambda: _convolutions(1, 5, 2),
    "products": _products,
    "merged": _merged,
    "pyramid": lambda: _pyramid(6, 5, 9),
}


@cache
def _classes(program: Graph) -> EClasses:
    """With so many mutants of an op that some have a correction: by prediction those are slower than exact ones."""
    with patch("mirage_eg.graph_optimizer.mutant_rules.MOST_OF_AN_OP", 24):
        return saturated_classes(program, weights_of(program), mutants_for=H200)[1]


@pytest.mark.parametrize(
    "name", few([pytest.param(name, marks=[pytest.mark.slow] * (name == "pyramid")) for name in PROGRAMS], 2)
)
def test_every_e_node_of_mutants_equals_its_class(name: str) -> None:
    program = PROGRAMS[name]()
    plain = saturated_classes(program, weights_of(program))[1]
    classes = _classes(program)
    check = check_enodes(program, classes)
    assert (check.different, check.unreached) == ((), 0)
    assert check.evaluated == classes.count > plain.count
    patched = any(it.constructor == "Patched" for own in classes.enodes for it in own)
    assert patched == (name != "products")


def test_the_mutants_of_a_convolution_serve_every_height() -> None:
    program = _pyramid(6, 10)
    terms = ProgramTerms(program, frozenset())
    classes = read_classes(saturate(terms).egraph, terms)
    one, other = linear_ops(classes)
    rules = list(mutant_rules(classes, terms, H200, lambda *_: None))
    names = [re.findall(r'"mutant \d.\d of Conv: (.*)"', rule) for rule in rules]
    assert len(names) == 16 and names[:8] == names[8:]
    own, (height,) = mutants(one.program(terms.ops.names)), other.operands[0].shape[2:3]
    assert {height, one.operands[0].shape[2]} == {6, 10}
    for it in own:
        shared = for_all_sizes(it.program, it.mutation, 0, 2).mutant(other.program(terms.ops.names), height)
        wanted = mutant_of(shared.program, shared.part, it.mutation)
        assert wanted is not None and {*wanted.rectangles} == {*shared.rectangles}
        assert wanted.equal_fraction == shared.equal_fraction and wanted.changed == shared.changed


@dataclass(frozen=True)
class DearKernels(KernelCosts):
    """Convolutions take 100 times as long if `is_dear` holds for their attributes' text and the shape of their images."""

    is_dear: Callable[[str, tuple[int, ...]], bool] = lambda text, shape: False

    def products(self, enode: NumberedENode, operands: list[Types], result: Types) -> float:
        us = super().products(enode, operands, result) + 1
        return us * (100 if self.is_dear(str(enode.constants), operands[0][0].shape) else 1)


DEAR: dict[str, tuple[str, Callable[[str, tuple[int, ...]], bool]]] = {
    "dilations": ("dilated", lambda text, _: "(2, 2)" in text),
    "dilations of odd images": ("odd", lambda text, _: "(2, 2)" in text),
    "batches": ("convolutions", lambda text, shape: shape[0] > 1 or "pads=(1, 1, 1, 1) strides=(1, 1)" not in text),
}


@pytest.mark.parametrize("case", DEAR)
def test_extraction_takes_mutants_where_the_program_is_dear(case: str) -> None:
    name, is_dear = DEAR[case]
    program = PROGRAMS[name]()
    classes = _classes(program)
    dear_kernels, patches = [], []
    for costs in (DearKernels(H200), DearKernels(H200, is_dear=is_dear)):
        chosen = extract(classes, costs)
        found = rewritten(program, classes, chosen)
        assert verify(program, found.whole).verdict is Equality.EQUAL
        convolved = [it.enode for it in chosen.choices if it.enode.constructor in ("Conv", "BiasedConv")]
        dear_kernels.append(sum(is_dear(str(it.constants), classes.types[it.children[0]][0].shape) for it in convolved))
        patches.append(sum(item.op == "patch" for item in found.graph.nodes))
    assert dear_kernels == [2, 0] and patches[0] == 0
    assert patches[1] or case != "batches"


@pytest.mark.slow
def test_a_whole_model_with_mutants_is_equal_and_no_dearer() -> None:
    program = csrnet_back_end(1, 8, 6)
    without, found = (optimize_graph(program, H200, with_mutants=it) for it in (False, True))
    assert found.verdict.difference is None
    assert found.report.enodes > without.report.enodes
    assert found.report.joint.us <= without.report.joint.us + 1e-6
    assert any(law.startswith("mutant ") for law, _ in found.report.laws)
