"""log(x/y) = log x − log y where both are known to be positive: what is known so, what is not, and what it makes findable."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_law import Truth, check_law
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality

Write = Callable[[KernelGraph, Tensor], Tensor]


def program(write: Write, rows: int = 8) -> Graph:
    graph = new_kernel_graph()
    graph.mark_output(write(graph, graph.new_input((rows, 8), name="X")))
    return graph.graph()


def ratio(over: Write, under: Write) -> Graph:
    return program(lambda g, x: g.log(g.div(over(g, x), under(g, x))))


def difference(over: Write, under: Write) -> Graph:
    return program(lambda g, x: g.sub(g.log(over(g, x)), g.log(under(g, x))))


POSITIVE: dict[str, Write] = {
    "an exponential": lambda g, x: g.exp(x),
    "a sum of exponentials": lambda g, x: g.sum(g.exp(x), 1),
    "the largest exponential": lambda g, x: g.max(g.exp(x), 1),
    "a sigmoid": lambda g, x: g.sigmoid(x),
    "an exponential and one": lambda g, x: g.shift(g.exp(x), 1),
    "half an exponential": lambda g, x: g.scale(g.exp(x), 0.5),
    "the root of an exponential": lambda g, x: g.sqrt(g.exp(x)),
    "a mean of products": lambda g, x: g.mean(g.mul(g.exp(x), g.square(g.sigmoid(x))), 1),
}
UNKNOWN: dict[str, Write] = {
    "an input": lambda g, x: x,
    "a square": lambda g, x: g.square(x),
    "an exponential less one": lambda g, x: g.shift(g.exp(x), -1),
    "a negative exponential": lambda g, x: g.scale(g.exp(x), -1),
    "a difference of exponentials": lambda g, x: g.sub(g.exp(x), g.exp(g.scale(x, 2))),
    "relu": lambda g, x: g.relu(x),
}


@pytest.mark.parametrize("name", POSITIVE)
def test_the_logarithm_of_a_ratio_of_positive_terms_is_a_difference(name: str) -> None:
    for pair in ((POSITIVE[name], POSITIVE["an exponential"]), (POSITIVE["an exponential"], POSITIVE[name])):
        proof = Prover(ratio(*pair)).prove(difference(*pair))
        assert proof.proved and proof.partial == ()


@pytest.mark.parametrize("name", UNKNOWN)
def test_where_a_sign_is_not_known_the_logarithm_of_a_ratio_stays(name: str) -> None:
    for pair in ((UNKNOWN[name], POSITIVE["an exponential"]), (POSITIVE["an exponential"], UNKNOWN[name])):
        assert not Prover(ratio(*pair)).prove(difference(*pair)).proved


def test_the_search_writes_a_log_softmax_without_its_quotient() -> None:
    unfolded = program(lambda g, x: g.log(g.div(g.exp(x), g.sum(g.exp(x), 1))), rows=4)
    axes = infer_axes(expand(unfolded))
    found = search(expand(unfolded), axes, load_rules("indexed"), SearchLimits(6)).structures
    ops = {tuple(sorted(step.op for step in structure.steps)) for structure in found}
    assert ("exp", "log", "sub", "sum") in ops


ASSERTED = {
    "exponentials": ("(rule ((= e (Exp (Exp x)))) ((above_zero e)))", Truth.HELD),
    "sums": ("(rule ((= e (Add x (Exp y))) (above_zero x)) ((above_zero e)))", Truth.HELD),
    "squares": ("(rule ((= e (Square x))) ((above_zero e)))", Truth.REFUTED),
    "differences": ("(rule ((= e (Sub x y)) (above_zero x) (above_zero y)) ((above_zero e)))", Truth.REFUTED),
    "scales": ("(rule ((= e (Scale c x)) (above_zero x)) ((above_zero e)))", Truth.REFUTED),
}


@pytest.mark.parametrize("name", ASSERTED)
def test_what_a_law_calls_above_zero_is_tested(name: str, tmp_path: Path) -> None:
    text, truth = ASSERTED[name]
    path = tmp_path / "my.egg"
    path.write_text(f"{text}\n")
    book = load_rules("indexed", [path])
    assert check_law(book.laws[-1], "indexed", book.signatures).truth is truth


def test_a_ratio_with_lost_digits_is_no_difference_to_one_without() -> None:
    """exp x is subnormal for x below −708: its logarithm has few digits left, and x itself has all."""
    verdict = verify(
        program(lambda g, x: g.log(g.div(g.exp(g.scale(x, 60)), g.sum(g.exp(x), 1))), rows=200),
        program(lambda g, x: g.sub(g.scale(x, 60), g.log(g.sum(g.exp(x), 1))), rows=200),
    )
    assert verdict.verdict is Equality.UNDECIDED  # log is a random function in the field
    wrong = program(lambda g, x: g.sub(g.scale(x, 60), g.log(g.mean(g.exp(x), 1))), rows=200)
    assert verify(program(lambda g, x: g.log(g.div(g.exp(g.scale(x, 60)), g.sum(g.exp(x), 1))), rows=200), wrong).verdict is (
        Equality.NOT_EQUAL
    )
