"""Outputs that no part would make: inputs, and one value for two outputs."""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.cuts import pairs_of
from mirage_eg.verify.restriction import joint_axes
from property_tests.verify.test_kernel_mutants import kernel_mutants


def of_two_inputs(outputs: Callable[..., Any]) -> Graph:
    p = mi.new_kernel_graph()
    for value in outputs(p, p.new_input((8, 8)), p.new_input((8, 8))):
        p.mark_output(value)
    return p.graph()


def with_outputs(graph: Graph, *values: int) -> Graph:
    return Graph((*(item for item in graph.nodes if item.op != "output"), *(node("output", value) for value in values)))


def test_no_mutant_whose_output_is_an_input_is_equal() -> None:
    program = of_two_inputs(lambda p, x, y: (p.softmax(x @ y, 1) @ y, p.exp(x - p.mean(x, 1))))
    parts = BlockReference(program)
    inputs = [it for it in kernel_mutants(program) if any(item.operands[0] in it.input_values for item in it.outputs)]
    assert len(inputs) > 2 and not any(parts.check(it).equal for it in inputs)


@pytest.mark.parametrize("values", [(2, 2), (3, 3), (3, 2), (0, 3), (2, 1)])
def test_outputs_stand_for_those_of_the_program_in_order(values: tuple[int, int]) -> None:
    program = of_two_inputs(lambda p, x, y: ((z := x @ y), p.exp(z)))
    assert [it.op for it in program.nodes if it.op != "output"] == ["input", "input", "matmul", "exp"]
    assert not BlockReference(program).check(with_outputs(program, *values)).equal
    assert BlockReference(program).check(with_outputs(program, 2, 3)).equal


def test_a_product_that_both_compute_is_not_evaluated_to_find_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def evaluated(graph: Graph, *rest: Any, **named: Any) -> Any:
        seen.extend(item.op for item in graph.ops)
        return evaluate(graph, *rest, **named)

    monkeypatch.setattr("mirage_eg.verify.cuts.evaluate", evaluated)
    one = of_two_inputs(lambda p, x, y: (p.exp((z := x @ y) + z),))
    other = of_two_inputs(lambda p, x, y: (p.exp(p.scale(x @ y, 2)),))
    assert [[item.op for item in pair.program.ops] for pair in pairs_of(one, other, seed=0)] == [["add", "exp"]]
    assert "exp" in seen and "matmul" not in seen


def test_an_input_that_is_an_output_of_both_needs_no_part() -> None:
    def program(double: Callable[..., Any]) -> Graph:
        return of_two_inputs(lambda p, x, y: (x, p.exp(double(p, x @ y))))

    one, other = program(lambda p, z: z + z), program(lambda p, z: p.scale(z, 2))
    assert BlockReference(one).check(other).equal
    assert [[item.op for item in pair.program.ops] for pair in pairs_of(one, other, seed=0)] == [["add", "exp"]]


def test_a_half_of_a_value_is_no_input_of_a_part_beside_it() -> None:
    def halves(p: Any, x: Any) -> tuple[Any, Any]:
        return p.slice(x, 1, 0, 4), p.slice(x, 1, 4, 8)

    def rotated(whole: bool) -> Graph:
        p = mi.new_kernel_graph()
        x, w, c, s = (p.new_input(shape, "float16") for shape in ((8, 8), (8, 8), (8, 8), (8, 8)))
        y = x @ w
        a, b = halves(p, y)
        if whole:
            p.mark_output(y * c + p.concat((-b, a), 1) * s)
        else:
            (c1, c2), (s1, s2) = halves(p, c), halves(p, s)
            p.mark_output(p.concat((a * c1 - b * s1, b * c2 + a * s2), 1))
        return p.graph()

    [pair] = pairs_of(rotated(True), rotated(False), seed=0)
    assert not any(item.op == "matmul" for item in pair.program.ops)
    assert BlockReference(pair.program).check(pair.kernels).equal


def test_a_half_of_its_own_kernel_is_an_input_beside_the_whole() -> None:
    def swapped(apart: bool) -> Graph:
        p = mi.new_kernel_graph()
        x, w, b = (p.new_input((8, 8), "float16") for _ in range(3))
        y = x @ w
        left, right = (x @ p.slice(w, 1, i, i + 4) if apart else p.slice(y, 1, i, i + 4) for i in (0, 4))
        c = p.concat((right, left), 1)
        p.mark_output(y * b + c * b if apart else (y + c) * b)
        return p.graph()

    pairs = pairs_of(swapped(False), swapped(True), seed=0)
    assert len(pairs) == 3 and all(BlockReference(pair.program).check(pair.kernels).equal for pair in pairs)


SCORES: dict[str, Callable[..., Any]] = {
    "one exponential": lambda p, s, mask: p.exp(s + mask),
    "a product of two": lambda p, s, mask: p.exp(s) * p.exp(mask),
}


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_exponentials_that_overflow_in_memory_are_refused_behind_a_cut(scores: Callable[..., Any], dtype: str) -> None:
    def attention(weights: Callable[..., Any]) -> Graph:
        p = mi.new_kernel_graph()
        q, k, v, mask = (p.new_input(shape, dtype) for shape in ((32, 16), (16, 32), (32, 16), (32, 32)))
        p.mark_output(weights(p, p.scale(q @ k, 1), mask) @ v)
        return p.graph()

    def normalized(p: Any, s: Any, mask: Any) -> Any:
        e = scores(p, s, mask)
        return e / p.sum(e, 1)

    def shifted(p: Any, s: Any, mask: Any) -> Any:
        e = p.exp((scaled := s + mask) - p.max(scaled, 1))
        return e / p.sum(e, 1)

    reference = BlockReference(attention(lambda p, s, mask: p.softmax(s + mask, 1)))
    wrong, right = attention(normalized), attention(shifted)
    assert reference.check(wrong).equal and reference.check(right).equal
    assert [check.ok for check in reference.float_checks([wrong, right])] == [False, True]


def test_nothing_between_an_exponential_and_its_logarithm_is_a_cut() -> None:
    def program(first: int, second: int) -> Graph:
        def outputs(p: Any, x: Any, y: Any) -> Any:
            s = p.scale(p.scale(x @ y, first), second)
            return (p.log(p.sum(p.exp(s), 1)),)

        return of_two_inputs(outputs)

    [pair] = pairs_of(program(2, 3), program(3, 2), seed=0)
    assert [item.op for item in pair.program.ops] == ["scale", "scale", "exp", "sum", "log"]


def test_tiles_that_cut_merged_rows_unevenly_have_few_rows_in_a_guess() -> None:
    """7 · 5 · 200 rows in 55 tiles of 128, of which the last is short, and squares between two kernels."""
    p, q = mi.new_kernel_graph(), mi.new_kernel_graph()
    given = [(7, 5, 200, 32), (32, 64)]
    x, w = (p.new_input(shape) for shape in given)
    p.mark_output(p.square(p.square(p.reshape(p.reshape(x, (7000, 32)) @ w, (7, 5, 200, 64)))))
    x, w = (q.new_input(shape) for shape in given)
    b = new_threadblock_graph((55,))
    rows = b.op("input", shape=(7000, 32), dtype="float16", imap=(0,), fmap=-1, tile=(128, 32))
    b.new_output(b.square(b.matmul(rows, b.new_input(w, (-1,)))), (0,))
    (squares,) = q.customized([q.reshape(x, (7000, 32)), w], b)
    q.mark_output(q.square(q.reshape(squares, (7, 5, 200, 64))))
    joint = joint_axes(expand(p.graph()), q.graph())
    assert all(prod(kind.shape) < 300 for graph in joint.at(joint.tiny()) for kind in graph.types)
    assert [[item.op for item in pair.program.ops][-1] for pair in pairs_of(p.graph(), q.graph(), seed=0)] == ["square"]
    assert BlockReference(p.graph()).check(q.graph()).equal
