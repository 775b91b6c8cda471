"""Partitions at slices and concatenations are proved by the laws of slices, and wrong ones are not."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings

from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.sufficient_laws import SufficientLaws
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.dissolve import Dissolution, dissolve
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.selections import is_everything
from mirage_eg.testing import programs
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.slice_proof import LIMITS, laws_of_parting, parting_claims
from property_tests.ir.test_dissolve import MOVES
from property_tests.support.sliced_programs import joined_weights, rotary_scores

BOOK = load_rules("indexed")


def holds(claims: Expression) -> bool:
    return laws_of_parting(claims, SufficientLaws(BOOK, LIMITS)) is not None


@settings(max_examples=25)
@given(programs(frozenset(MOVES), attempts=12))
def test_partitions_are_proved(program: Graph) -> None:
    graph = without_dead_code(expand(program))
    parting = dissolve(graph, everywhere=True)
    assume(parting.graph is not graph)
    try:
        claims = parting_claims(graph, parting)
    except UnsupportedError as error:
        assume("one axis in two dims" not in str(error) and "overlap without dividing" not in str(error))
        raise
    assert claims is not None
    assert holds(claims)


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
@pytest.mark.parametrize(("pieces", "stop", "step"), [(2, 6, 1), (2, 8, 2), (3, 10, 1)])
def test_reductions_of_a_slice_across_joints_are_proved(kind: str, pieces: int, stop: int, step: int) -> None:
    p = KernelGraph()
    x, y = p.new_input((4, 3)), p.new_input((4, 5))
    taken = p.slice(p.concat([x, y, x][:pieces], 1), 1, 1, stop, step)
    p.mark_output(p.op(kind, p.exp(taken), dim=1))
    graph = without_dead_code(expand(p.graph()))
    parting = dissolve(graph, everywhere=True)
    claims = parting_claims(graph, parting)
    assert claims is not None and not any(item.op == "concat" for item in parting.graph.nodes)
    assert holds(claims)


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
@pytest.mark.parametrize(("width", "shape"), [(2, (6, 2)), (6, (3, 3, 2, 2))])
def test_reductions_along_joints_that_a_reshape_cuts_are_proved(kind: str, width: int, shape: tuple[int, ...]) -> None:
    p = KernelGraph()
    joined = p.concat([p.new_input((3, width)), p.new_input((3, width))], 1)
    p.mark_output(p.reshape(joined, shape))
    p.mark_output(p.op(kind, p.exp(joined), dim=1))
    graph = p.graph()
    claims = parting_claims(graph, dissolve(graph, everywhere=True))
    assert claims is not None and holds(claims)


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("between", [False, True])
def test_concatenations_of_concatenations_before_a_view_are_proved(levels: int, between: bool) -> None:
    p = KernelGraph()
    value = p.new_input((2, 3))
    for _ in range(levels):
        value = p.concat([p.exp(value) if between else value, value], 0)
    p.mark_output(p.reshape(value, (2, 2**levels, 3)))
    graph = without_dead_code(expand(p.graph()))
    parting = dissolve(graph, everywhere=True)
    claims = parting_claims(graph, parting)
    assert claims is not None and holds(claims)


def changed(item: Node, by: int) -> Node:
    attributes: Mapping[str, object] = item.mapping
    if item.op == "slice":
        attributes = {**item.mapping, "start": item["start"] + by, "stop": item["stop"] + by}
    elif item.op == "scale":
        attributes = {**item.mapping, "factor": -item["factor"]}
    return Node(item.op, item.operands, tuple(sorted(attributes.items())))


@pytest.mark.parametrize("program", [rotary_scores(), joined_weights()])
def test_wrong_partitions_are_not_proved(program: Graph) -> None:
    graph = without_dead_code(expand(program))
    parting = dissolve(graph, everywhere=True)
    right = parting_claims(graph, parting)
    assert right is not None and holds(right)
    tried = 0
    for position, item in enumerate(parting.graph.nodes):
        if item.op in ("slice", "scale"):
            nodes = list(parting.graph.nodes)
            nodes[position] = changed(item, 1 if item["start"] == 0 else -1) if item.op == "slice" else changed(item, 0)
            wrong = parting_claims(graph, Dissolution(Graph(tuple(nodes)), parting.parts))
            assert wrong is not None and not holds(wrong)
            tried += 1
    assert tried


def test_parts_that_do_not_make_up_an_output_are_refused() -> None:
    p = KernelGraph()
    x, y = p.new_input((4, 3)), p.new_input((4, 5))
    p.mark_output(p.exp(p.concat([x, y], 1)))
    graph = p.graph()
    parting = dissolve(graph, everywhere=True)
    claims = parting_claims(graph, parting)
    assert claims is not None and holds(claims)
    [output] = [item.operands[0] for item in graph.outputs]
    whole = next(key for key in parting.parts if key[0] == output and all(map(is_everything, key[1])))
    part = next(key for key in parting.parts if key[0] == output and key != whole)
    parts = {key: value for key, value in parting.parts.items() if key not in (whole, part)}
    with pytest.raises(UnsupportedError, match="make it up"):
        parting_claims(graph, replace(parting, parts=parts))


def rotary(p: KernelGraph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = p.concat([p.scale(p.slice(x, -1, half, 2 * half), Fraction(-1)), p.slice(x, -1, 0, half)], -1)
    return p.add(p.mul(x, cos), p.mul(turned, sin))


def by_halves(sign: int = -1) -> Graph:
    """RoPE of a computed query by halves, the weight cut instead of the product."""
    p = KernelGraph()
    x, w, cos, sin = (p.new_input(shape) for shape in ((6, 8), (8, 4), (4,), (4,)))
    [a, b], [c, d], [e, f] = ([p.slice(value, -1, 2 * part, 2 * part + 2) for part in (0, 1)] for value in (w, cos, sin))
    first, second = p.matmul(x, a), p.matmul(x, b)
    left = p.add(p.mul(first, c), p.mul(p.scale(second, Fraction(sign)), e))
    right = p.add(p.mul(second, d), p.mul(first, f))
    p.mark_output(p.concat([left, right], -1))
    return p.graph()


def test_rotary_embedding_of_a_product_is_proved_by_laws_of_slices() -> None:
    p = KernelGraph()
    x, w, cos, sin = (p.new_input(shape) for shape in ((6, 8), (8, 4), (4,), (4,)))
    p.mark_output(rotary(p, p.matmul(x, w), cos, sin))
    prover = Prover(p.graph())
    proof = prover.prove(by_halves())
    assert proof.proved and not proof.partial
    assert {"slice of a sum", "slice of mul", "slice of the first"} <= {*proof.laws}
    assert not prover.prove(by_halves(sign=1)).proved


def test_interleaved_rotary_embedding_is_proved_by_laws_of_slices() -> None:
    def pairs(by_reshape: bool) -> Graph:
        p = KernelGraph()
        x, c = p.new_input((6, 8)), p.new_input((4,))
        view = p.reshape(x, (6, 4, 2))
        even, odd = (
            p.reshape(p.slice(view, 2, part, part + 1), (6, 4)) if by_reshape else p.slice(x, 1, part, 8, 2) for part in (0, 1)
        )
        p.mark_output(p.sub(p.mul(even, c), p.mul(odd, c)))
        return p.graph()

    assert Prover(pairs(True)).prove(pairs(False)).proved
