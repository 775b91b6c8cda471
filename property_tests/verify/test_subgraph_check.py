"""Kernels judged where they stand: right ones pass, a wrong one is told from the right ones before and behind it."""

import pytest

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.verify import block_reference
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.subgraph_check import Subgraph, SubgraphCheck
from mirage_eg.verify.verdict import Verdict

FIRST, SECOND = 2, 3  # x, w; then the product, and what is made of it


def program(last: str = "silu") -> Graph:
    """`last` of a product."""
    graph = new_kernel_graph()
    product = graph.matmul(graph.new_input((8, 12), name="x"), graph.new_input((12, 6), name="w"))
    graph.mark_output(getattr(graph, last)(product))
    return graph.graph()


def single(name: str, *shapes: tuple[int, ...]) -> Graph:
    inputs = [node("input", shape=shape, dtype="float16", name=f"x{place}") for place, shape in enumerate(shapes)]
    operands = tuple(range(len(shapes)))
    return Graph((*inputs, Node(name, operands, ()), node("output", len(shapes), name="out0")))


PRODUCT = Subgraph(single("matmul", (8, 12), (12, 6)), (0, 1), (FIRST,))


def verdicts(whole: Graph, *parts: Subgraph) -> tuple[Verdict, list[Verdict]]:
    """On the program against itself, and on the parts."""
    first, *rest = (verdict for verdict, _ in Reference(whole).check_all([whole], subgraphs=SubgraphCheck(whole, parts)))
    return first, rest


@pytest.mark.parametrize("last", ["silu", "exp", "sqrt", "relu"])
def test_right_kernels_are_equal_where_they_stand(last: str) -> None:
    whole, parts = verdicts(program(last), PRODUCT, Subgraph(single(last, (8, 6)), (FIRST,), (SECOND,)))
    assert whole.equal
    assert all(part.equal and part.error_bound is None for part in parts)


@pytest.mark.parametrize(("right", "wrong"), [("silu", "sigmoid"), ("exp", "square"), ("relu", "silu"), ("sqrt", "square")])
def test_a_wrong_kernel_is_not_equal_and_the_right_ones_beside_it_are(right: str, wrong: str) -> None:
    behind = Subgraph(single(right, (8, 6)), (FIRST,), (SECOND,))
    astray = Subgraph(single(wrong, (8, 6)), (FIRST,), (SECOND,))
    whole, (product, bad, good) = verdicts(program(right), PRODUCT, astray, behind)
    assert whole.equal and product.equal and good.equal
    assert not bad.equal and bad.difference is not None


def test_a_wrong_kernel_in_front_does_not_spoil_what_stands_behind_it() -> None:
    twice = new_kernel_graph()
    x, w = twice.new_input((8, 12), name="x"), twice.new_input((12, 6), name="w")
    twice.mark_output(twice.scale(twice.matmul(x, w), 2.0))
    wrong = Subgraph(twice.graph(), (0, 1), (FIRST,))
    _, (front, behind) = verdicts(program(), wrong, Subgraph(single("silu", (8, 6)), (FIRST,), (SECOND,)))
    assert not front.equal
    assert behind.equal


def test_a_kernel_of_a_large_program_is_refused_without_the_programs_values(monkeypatch: pytest.MonkeyPatch) -> None:
    astray = Subgraph(single("square", (8, 6)), (FIRST,), (SECOND,))
    monkeypatch.setattr(SubgraphCheck, "field", lambda *_: pytest.fail("the program was evaluated"))
    with pytest.raises(pytest.fail.Exception):
        BlockReference(program("exp")).check_parts(program("exp"), [astray])
    monkeypatch.setattr(block_reference, "FEW", 1)
    [verdict] = BlockReference(program("exp")).check_parts(program("exp"), [astray])
    assert not verdict.equal
