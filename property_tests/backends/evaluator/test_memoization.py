"""What is taken from what is memo is what computing it again gives, is computed once, and is not taken for anything else."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.memoization import FieldMemo, NumericMemo
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import COARSE_COMPARISONS, Reference
from mirage_eg.verify.subgraph_check import Subgraph, SubgraphCheck
from property_tests.support.programs import PROGRAMS

NAMES = sorted(PROGRAMS)


def inputs_of(program: Graph, algebra: FieldAlgebra) -> list[FieldValue]:
    return [algebra.input(place, kind.shape) for place, kind in enumerate(program.input_types)]


@pytest.mark.parametrize(("name", "trials"), [*product(NAMES, [0, (0, 1)])])
def test_every_component_is_the_same_with_and_without(name: str, trials: int | tuple[int, ...]) -> None:
    program = expand(PROGRAMS[name]())
    algebra = FieldAlgebra.of(0, trials)
    inputs, memo = inputs_of(program, algebra), FieldMemo(algebra)
    plain = evaluate(program, inputs, algebra, stack=algebra.stack)
    for _ in range(2):
        shared = evaluate(program, inputs, algebra, stack=algebra.stack, memo=memo)
        for k in range(len(PRIMES)):
            for got, wanted in zip(algebra.read(shared, k), algebra.read(plain, k), strict=True):
                np.testing.assert_array_equal(got.residues, wanted.residues)
        assert [value.unfaithful for value in shared] == [value.unfaithful for value in plain]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_the_same_with_and_without(name: str) -> None:
    program = expand(PROGRAMS[name]())
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(kind.shape) for kind in program.input_types]
    plain, memo = evaluate(program, inputs, FloatAlgebra()), NumericMemo()
    for _ in range(2):
        for got, wanted in zip(evaluate(program, inputs, FloatAlgebra(), memo=memo), plain, strict=True):
            np.testing.assert_array_equal(got, wanted)


def binary(op: str, first: int, second: int) -> Graph:
    graph = new_kernel_graph()
    inputs = [graph.new_input((4, 8), name=name) for name in "xy"]
    graph.mark_output(graph.exp(getattr(graph, op)(inputs[first], inputs[second])))
    return graph.graph()


def test_only_equal_operands_of_equal_ops_are_taken_for_the_same() -> None:
    graphs = [binary(op, *places) for op in ("sub", "mul") for places in ((0, 1), (1, 0), (0, 0), (1, 1))]
    algebra = FieldAlgebra.of(3)
    inputs, memo = inputs_of(graphs[0], algebra), FieldMemo(algebra)
    for graph in graphs * 2:
        [got] = algebra.read(evaluate(graph, inputs, algebra, memo=memo))
        [wanted] = algebra.read(evaluate(graph, inputs, algebra))
        np.testing.assert_array_equal(got.residues, wanted.residues)


@pytest.mark.parametrize("first", ["float16", "float32"])
def test_equal_numbers_of_other_types_are_rounded_as_their_own_type_is(first: str) -> None:
    array, memo = np.array([1.0, 3.0], np.float32), NumericMemo()
    algebra = FloatAlgebra(np, DType.float32, rounds=True)
    for dtype in (first, "float32", "float16"):
        graph = new_kernel_graph()
        graph.mark_output(graph.exp(graph.new_input((2,), dtype=dtype)))
        [got] = evaluate(graph.graph(), [array], algebra, rounded=True, memo=memo)
        [wanted] = evaluate(graph.graph(), [array], algebra)
        np.testing.assert_array_equal(got, wanted)


def test_what_follows_equal_values_is_computed_once() -> None:
    """(x + y)² and (y + x)² differ as graphs, their sums are equal in every bit: the square is computed once."""
    squares = 0

    class Counting(FloatAlgebra):
        def elementwise(self, op: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
            nonlocal squares
            squares += op == "square"
            return FloatAlgebra.elementwise(self, op, operands, attributes)

    memo, algebra = NumericMemo(), Counting()
    x = [np.arange(32.0).reshape(4, 8), np.ones((4, 8))]
    for first, second in ((0, 1), (1, 0)):
        graph = new_kernel_graph()
        inputs = [graph.new_input((4, 8), name=name) for name in "xy"]
        graph.mark_output(graph.square(graph.add(inputs[first], inputs[second])))
        evaluate(graph.graph(), x, algebra, memo=memo)
    assert squares == 1


def test_a_program_of_a_thousand_ops_is_read_from_the_memo() -> None:
    graph = new_kernel_graph()
    x = y = graph.new_input((4, 4), name="x")
    for number in range(1000):
        y = graph.transpose(y, (1, 0)) if number % 3 else graph.add(y, x)
    graph.mark_output(y)
    algebra = FieldAlgebra.of(0)
    inputs, memo = inputs_of(graph.graph(), algebra), FieldMemo(algebra)
    [got] = algebra.read(evaluate(graph.graph(), inputs, algebra, memo=memo))
    [wanted] = algebra.read(evaluate(graph.graph(), inputs, algebra))
    np.testing.assert_array_equal(got.residues, wanted.residues)


@pytest.mark.parametrize("right", [True, False])
def test_a_kernel_of_one_element_is_compared_often_and_found_wrong_if_it_is(right: bool) -> None:
    whole = new_kernel_graph()
    x, w = whole.new_input((1, 8), name="x"), whole.new_input((8, 64), name="w")
    root = whole.sqrt(whole.mean(whole.square(x), 1))
    whole.mark_output(whole.matmul(whole.div(x, root), w))
    program = whole.graph()
    [at] = [values[0] for item, values in program.numbered() if item.op == "sqrt"]
    part = new_kernel_graph()
    root = part.sqrt(part.mean(part.square(part.new_input((1, 8), name="y")), 1))
    part.mark_output(root if right else part.scale(root, -1.0))
    subgraphs = SubgraphCheck(program, [Subgraph(part.graph(), (0,), (at,))])
    (first, _), (verdict, _) = Reference(program).check_all([program], subgraphs=subgraphs)
    assert first.equal and first.trials == 2
    assert verdict.equal == right
    assert not right or verdict.trials >= COARSE_COMPARISONS
