"""Searched µGraphs of packed weights and of experts: no wrong group, nibble, expert or token is equal, nor any wrong change."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, node
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.verify.test_kernel_mutants import drawn
from property_tests.verify.test_mutation import mutated

ROWS, TERMS, COLUMNS, GROUP = 3, 32, 8, 16
TOKENS, CHOSEN, EXPERTS = 5, 2, 4
MOST = 40  # single changes of a µGraph


def packed() -> Graph:
    """x times weights of four bits, two in a byte, with a scale for each group of them."""
    g, groups = new_kernel_graph(), TERMS // GROUP
    x, words = g.new_input((ROWS, TERMS), "float32"), g.new_input((COLUMNS, TERMS // 2), "uint8")
    scales = g.new_input((COLUMNS, groups, 1), "float32")
    nibbles = [g.op("low_bits", words, bits=4), g.op("right_shift", words, bits=4)]
    both = g.concat([g.reshape(it, (COLUMNS, TERMS // 2, 1)) for it in nibbles], 2)
    weights = g.reshape((g.cast(g.reshape(both, (COLUMNS, groups, GROUP)), "float32") - 8) * scales, (COLUMNS, TERMS))
    g.mark_output(g.matmul(x, g.transpose(weights, (1, 0))))
    return g.graph()


def experts() -> Graph:
    """Shares of each token times the weights of the experts that it chose."""
    g = new_kernel_graph()
    x, weights = g.new_input((TOKENS, TERMS), "float32"), g.new_input((EXPERTS, TERMS, COLUMNS), "float32")
    chosen, shares = g.new_input((TOKENS, CHOSEN), "int64"), g.new_input((TOKENS, CHOSEN, 1), "float32")
    products = g.matmul(g.reshape(x, (TOKENS, 1, 1, TERMS)), g.gather(weights, chosen))
    g.mark_output(g.reshape(g.sum(g.reshape(products, (TOKENS, CHOSEN, COLUMNS)) * shares, 1), (TOKENS, COLUMNS)))
    return g.graph()


PROGRAMS = {"packed": packed, "experts": experts}


@cache
def searched(name: str) -> Graph:
    """The best µGraph with a block graph."""
    found = optimize(name, PROGRAMS[name](), Options(top=1, device="cpu", cache=False)).candidates
    return next(it.graph for it in found if it.fused)


def on_other_input(graph: Graph, place: int, write: Callable[[KernelGraph, Tensor], Tensor]) -> Graph:
    """The µGraph with another tensor in the place of an input, computed from it."""
    copy, value = GraphCopy(graph), graph.input_values[place]
    for item, values in copy:
        copy.copy(item, values)
        if value in values:
            g, kind = new_kernel_graph(), graph.types[value]
            g.mark_output(write(g, g.new_input(kind.shape, kind.dtype)))
            [copy.position[value]] = copy.inlined(g.graph(), [copy.position[value]])
    return copy.graph()


def _rolled(g: KernelGraph, x: Tensor, dim: int) -> Tensor:
    return g.concat([g.slice(x, dim, 1, x.shape[dim]), g.slice(x, dim, 0, 1)], dim)


WRONG: dict[str, tuple[str, int, Callable[[KernelGraph, Tensor], Tensor]]] = {
    "the scale of the next group": ("packed", 2, lambda g, scales: _rolled(g, scales, 1)),
    "nibbles swapped": ("packed", 1, lambda g, w: g.op("low_bits", w, bits=4) * 16 + g.op("right_shift", w, bits=4)),
    "the next expert": ("experts", 2, lambda g, chosen: g.op("low_bits", chosen + 1, bits=2)),
    "the last token dropped": (
        "experts",
        0,
        lambda g, x: g.op("pad", g.slice(x, 0, 0, TOKENS - 1), before=(0, 0), after=(1, 0), value=0),
    ),
}


@pytest.mark.parametrize(
    "name", [name if WRONG[name][0] == "experts" else pytest.param(name, marks=pytest.mark.slow) for name in WRONG]
)
def test_a_searched_graph_of_a_wrong_input_is_not_equal(name: str) -> None:
    program, place, write = WRONG[name]
    reference = Reference(PROGRAMS[program]())
    assert reference.check(searched(program)).verdict is Equality.EQUAL
    assert reference.check(on_other_input(searched(program), place, write)).verdict is Equality.NOT_EQUAL


def other_bits(graph: Graph) -> Iterator[Graph]:
    """The graph with the bits that one node takes exchanged for others, also in graphs inside."""
    for place, item in enumerate(graph.nodes):
        others: list[Node] = []
        if item.op in ("low_bits", "right_shift"):
            other = "low_bits" if item.op == "right_shift" else "right_shift"
            others = [node(other, *item.operands, bits=item["bits"])]
            others += [node(item.op, *item.operands, bits=item["bits"] + step) for step in (Fraction(-1), Fraction(1))]
        elif "graph" in item.mapping:
            others = [node(item.op, *item.operands, graph=inner) for inner in other_bits(item["graph"])]
        for one in others:
            copy = GraphCopy(graph)
            for number, (old, values) in enumerate(copy):
                copy.copy(one if number == place else old, values)
            yield copy.graph()


@pytest.mark.slow
def test_other_bits_of_a_word_are_not_equal() -> None:
    reference, wrong = Reference(packed()), list(other_bits(searched("packed")))
    assert len(wrong) >= 6
    assert all(verdict.verdict is Equality.NOT_EQUAL for verdict, _ in reference.check_all(wrong))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_single_change_that_is_called_equal_is(name: str) -> None:
    program = PROGRAMS[name]()
    changes = list(mutated(searched(name)))
    chosen = changes[:: max(1, len(changes) // MOST)]
    verdicts = [verdict.verdict for verdict, _ in Reference(program).check_all(chosen)]
    for change, verdict in zip(chosen, verdicts, strict=True):
        for seed in range(4) if verdict is Equality.EQUAL else ():
            inputs = drawn(program, seed)
            [got], [want] = (evaluate(graph, inputs, FloatAlgebra()) for graph in (change, program))
            np.testing.assert_allclose(got, want, rtol=1e-9)
    assert verdicts.count(Equality.NOT_EQUAL) >= 4
