"""Mutation testing of kernel graphs: constants, terms, operands, masks, dims, cuts and reductions; no wrong one is equal."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.support.library_programs import LIBRARY_PROGRAMS
from property_tests.support.parameters import few
from property_tests.support.small_programs import written

DRAWS = 12  # random inputs on which an accepted mutant is compared with its program
MOST = 60  # mutants of a program


def changed(item: Node, place: int) -> Iterator[Node]:
    """The node with one thing changed, legal or not; `place` is the number of values before it."""
    for i, operand in enumerate(item.operands):
        for other in range(place):
            if other != operand:
                yield Node(item.op, (*item.operands[:i], other, *item.operands[i + 1 :]), item.attributes)
    row = OPS[item.op]
    if item.op == "output":
        return
    for operand in item.operands[1:] + item.operands[:1] if len(item.operands) > 1 else ():
        yield node("scale", operand, factor=Fraction(1))  # a dropped term
    if len(item.operands) == 2:
        yield Node(item.op, item.operands[::-1], item.attributes)
    for name, value in item.attributes:
        if isinstance(value, Fraction):
            for other_value in (value * 2, value + Fraction(1, 3), -value, value * Fraction(1001, 1000)):
                yield node(item.op, *item.operands, **(item.mapping | {name: other_value}))
        elif isinstance(value, int) and item.op != "input":
            for step in (-1, 1):
                yield node(item.op, *item.operands, **(item.mapping | {name: value + step}))
    for op, other_row in OPS.items():
        alike = other_row.kind is row.kind and other_row.arity == row.arity and other_row.attributes == row.attributes
        if op != item.op and alike and row.kind in (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.LIBRARY):
            yield Node(op, item.operands, item.attributes)


def kernel_mutants(graph: Graph) -> Iterator[Graph]:
    """Every legal graph of the same types that differs in one node."""
    place = 0
    for i, item in enumerate(graph.nodes):
        for one in changed(item, place) if item.op != "input" else ():
            try:
                mutant = Graph((*graph.nodes[:i], one, *graph.nodes[i + 1 :]))
            except GraphError:
                continue
            if (mutant.input_types, mutant.output_types) == (graph.input_types, graph.output_types):
                yield mutant
        place += item.op != "output"


def drawn(graph: Graph, seed: int) -> list[np.ndarray]:
    """Inputs of a program; every third draw holds zeros."""
    generator, whole = np.random.default_rng(seed), whole_inputs(graph)
    inputs = []
    for place, kind in enumerate(graph.input_types):
        x = generator.uniform(-1.7, 1.7, kind.shape) if seed % 2 else generator.uniform(0.5, 1.5, kind.shape)
        x = x * (generator.random(kind.shape) > 0.2) if seed % 3 == 0 else x
        inputs.append(generator.integers(whole[place], size=kind.shape).astype(float) if place in whole else np.asarray(x))
    return inputs


def assert_no_wrong_mutant_is_equal(graph: Graph, most: int, draws_of_each: int = DRAWS) -> int:
    """Returns how many were refused."""
    reference = Reference(graph)
    every = list(kernel_mutants(graph))
    mutants = every[:: max(1, len(every) // most)]
    draws = [drawn(graph, seed) for seed in range(draws_of_each)]
    wanted = [evaluate(graph, inputs, FloatAlgebra()) for inputs in draws]
    refused = 0
    for mutant in mutants:
        if reference.check(mutant).verdict is not Equality.EQUAL:
            refused += 1
            continue
        for inputs, right in zip(draws, wanted, strict=True):
            for got, want in zip(evaluate(mutant, inputs, FloatAlgebra()), right, strict=True):
                defined = np.isfinite(want)
                np.testing.assert_allclose(got[defined], want[defined], rtol=1e-8, atol=1e-8, err_msg=str(mutant))
    return refused


def masked_attention(p: KernelGraph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = p.less(p.reshape(p.iota(6), (6, 1)), p.reshape(p.iota(6), (1, 6)))
    scores = p.scale(p.matmul(q, p.transpose(k, (1, 0))), Fraction(1, 2))
    return p.matmul(p.softmax(p.where(later, -30, scores), 1), v)


def norm(p: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
    shifted = p.sub(x, p.mean(x, 1))
    return p.matmul(p.div(shifted, p.sqrt(p.shift(p.mean(p.square(shifted), 1), Fraction(1, 1000)))), w)


def clipped(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.maximum(p.clamp(p.add(x, y), -1, 1), p.sub(p.tanh(x), p.scale(p.abs(y), Fraction(1, 3))))


WRITTEN = {
    "masked attention": written(masked_attention, (6, 4), (6, 4), (6, 4)),
    "a norm": written(norm, (5, 8), (8, 4)),
    "clipped": written(clipped, (6, 7), (6, 7)),
}


@pytest.mark.parametrize("name", few(WRITTEN, 2))
def test_no_wrong_change_of_a_kernel_graph_is_equal(name: str) -> None:
    assert assert_no_wrong_mutant_is_equal(expand(WRITTEN[name]), MOST) >= 20


FIRST = ("embedding", "take_along_dim", "index_write", "scatter", "the rows of the largest", "indices computed")


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in LIBRARY_PROGRAMS]
)
def test_no_wrong_change_of_a_program_with_library_ops_is_equal(name: str) -> None:
    assert_no_wrong_mutant_is_equal(expand(LIBRARY_PROGRAMS[name].graph()), MOST)


SMALL = ("rmsnorm", "gqa", "lora")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_no_wrong_change_of_a_workload_is_equal(name: str) -> None:
    assert assert_no_wrong_mutant_is_equal(expand(WORKLOADS[name](1)), 12, 3) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_no_wrong_change_at_all_of_a_kernel_graph_is_equal(name: str) -> None:
    assert assert_no_wrong_mutant_is_equal(expand(WRITTEN[name]), 1 << 20) >= 40
