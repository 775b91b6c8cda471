"""Slices and concatenations are dissolved: the same function, with slices of inputs and concatenations of outputs alone."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dissolve import dissolve
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.program_ends import core_of
from mirage_eg.testing import TAME, programs
from mirage_eg.verify.reference import verify
from property_tests.support.hand_written import inputs_of
from property_tests.support.sliced_programs import joined_weights, rotary_cache, rotary_scores

MOVES = ("slice", "concat", "slice", "concat", "split", "reshape", "transpose", "matmul", "sum", "mean", "max", "mul", "add")


def agree(one: Graph, two: Graph, seed: int = 0) -> None:
    arrays = inputs_of(one, seed)
    assert two.input_types == one.input_types
    assert two.output_types == one.output_types
    for got, want in zip(evaluate(two, arrays, FloatAlgebra()), evaluate(one, arrays, FloatAlgebra()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@settings(max_examples=150)
@given(programs(TAME, attempts=12), st.integers(0, 99))
def test_dissolved_programs_compute_the_same(program: Graph, seed: int) -> None:
    agree(program, dissolve(expand(program)).graph, seed)


@settings(max_examples=150)
@given(programs(frozenset(MOVES), attempts=16), st.integers(0, 99))
def test_dissolved_programs_of_slices_compute_the_same(program: Graph, seed: int) -> None:
    plain = expand(program)
    result = dissolve(plain).graph
    agree(program, result, seed)
    undivided = frozenset(values[0] for item, values in plain.numbered() if item.op == "matmul")
    agree(program, dissolve(plain, undivided).graph, seed)
    agree(program, dissolve(plain, summed=undivided).graph, seed)
    agree(program, dissolve(plain, everywhere=True).graph, seed)
    assert dissolve(result).graph == dissolve(dissolve(result).graph).graph


def test_a_program_is_its_core_between_its_ends() -> None:
    cores = []

    @settings(max_examples=150)
    @given(programs(frozenset(MOVES), attempts=12), st.integers(0, 99))
    def check(program: Graph, seed: int) -> None:
        for graph in (expand(program), dissolve(expand(program)).graph):
            if (core := core_of(graph)) is not None:
                agree(graph, core.rejoined(core.program), seed)
                cores.append(core)

    check()
    assert len(cores) >= 8


def slice_of_columns(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.slice(p.matmul(x, y), 1, 2, 6)


def slice_of_rows(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.slice(p.exp(p.matmul(x, y)), 0, 1, 8, 3)


def product_of_concatenations(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.matmul(p.concat([x, y], 1), p.concat([y, x], 0))


def softmax_of_a_concatenation(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.sum(p.softmax(p.concat([x, y], 1), 1), 1)


def mean_of_a_concatenation(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.mean(p.concat([x, p.slice(y, 1, 0, 2)], 1), 1)


def linear_of_a_concatenation(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.exp(p.matmul(p.concat([x, y], 0), y))


def sum_with_a_concatenation(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    half = p.concat([p.slice(x, 0, 0, 4), p.slice(y, 0, 4, 8)], 0)
    return p.exp(p.add(half, p.matmul(x, y)))


def slice_of_a_slice(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.slice(p.slice(p.add(x, y), 1, 1, 8, 2), 1, 1, 3)


def slice_of_a_concatenation(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return p.exp(p.slice(p.concat([x, y], 0), 0, 9, 12))


def heads(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    """The first halves of two heads, from a product with their joined weights."""
    return p.slice(p.transpose(p.reshape(p.matmul(x, y), (8, 2, 4)), (1, 0, 2)), 2, 0, 2)


def concatenation_of_slices(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    total = p.exp(p.add(x, y))
    return p.relu(p.concat([p.slice(total, 1, 0, 4), p.slice(total, 1, 4, 8)], 1))


LAWS: list[Callable[[KernelGraph, Tensor, Tensor], Tensor]] = [
    *(slice_of_columns, slice_of_rows, product_of_concatenations, softmax_of_a_concatenation, mean_of_a_concatenation),
    *(slice_of_a_slice, slice_of_a_concatenation, heads, concatenation_of_slices),
]


def of(body: Callable[[KernelGraph, Tensor, Tensor], Tensor]) -> Graph:
    p = new_kernel_graph()
    p.mark_output(body(p, p.new_input((8, 8), "float32", "X"), p.new_input((8, 8), "float32", "Y")))
    return p.graph()


@pytest.mark.parametrize("program", [*map(of, LAWS), rotary_scores(), joined_weights()])
def test_the_core_has_neither_slices_nor_concatenations(program: Graph) -> None:
    graph = dissolve(expand(program)).graph
    agree(program, graph)
    assert verify(program, graph).equal
    core = core_of(graph)
    inside = graph if core is None else core.program
    assert not {"slice", "concat"} & {item.op for item in inside.nodes}


@pytest.mark.parametrize("body", [linear_of_a_concatenation, sum_with_a_concatenation])
def test_a_concatenation_does_not_divide_a_product(body: Callable[[KernelGraph, Tensor, Tensor], Tensor]) -> None:
    graph = dissolve(of(body)).graph
    agree(of(body), graph)
    assert Counter(item.op for item in graph.nodes)["matmul"] == 1
    assert Counter(item.op for item in dissolve(of(body), everywhere=True).graph.nodes)["matmul"] == 2


@pytest.mark.parametrize("outputs", [1, 3])
def test_keys_and_values_with_a_cache_stay_whole(outputs: int) -> None:
    program = rotary_cache()
    program = Graph(tuple(item for item in program.nodes if item not in program.outputs[outputs:]))
    primitive = expand(program)
    products = frozenset(values[0] for item, values in primitive.numbered() if item.op == "matmul" and values[0] < 12)
    graph = dissolve(primitive, products).graph
    agree(program, graph)
    joined = [item for item, values in graph.numbered() if item.op == "concat" and len(graph.types[values[0]].shape) == 3]
    assert sorted(graph.types[item.operands[0]].shape for item in joined) == [(2, 3, 8), (2, 3, 8), (2, 4, 4)]  # last halves
    counts = Counter(item.op for item in graph.nodes)
    assert (counts["exp"], counts["sum"], counts["matmul"]) == (1, 1, 6)  # of the scores one a half of the rotary embedding


def test_an_overlap_is_computed_once() -> None:
    p = new_kernel_graph()
    x = p.new_input((8, 8), "float32", "X")
    product = p.matmul(x, x)
    for start in (0, 2):
        p.mark_output(p.exp(p.slice(product, 1, start, start + 4)))
    graph = dissolve(p.graph()).graph
    assert Counter(item.op for item in graph.nodes)["matmul"] == 1
    agree(p.graph(), graph)


@pytest.mark.parametrize(("rows", "times"), [(64, 1), (1 << 17, 2)])
def test_a_large_cast_is_computed_again_for_a_part(rows: int, times: int) -> None:
    """Statistics read a whole row, and a rotary embedding its halves: a cast to float32 need not be stored for both."""
    p = new_kernel_graph()
    x = p.cast(p.new_input((rows, 8), "float16", "X"), "float32")
    for half in (p.slice(x, 1, 0, 4), p.slice(x, 1, 4, 8)):
        p.mark_output(p.mul(half, p.mean(x, 1)))
    graph = dissolve(p.graph()).graph
    assert Counter(item.op for item in graph.nodes)["cast"] == (3 if times > 1 else 1)
    agree(p.graph(), graph)


def test_one_part_of_an_undivided_product_is_computed_alone() -> None:
    p = new_kernel_graph()
    x = p.new_input((8, 8), "float32", "X")
    p.mark_output(p.slice(p.matmul(x, x), 1, 2, 6))
    graph = dissolve(p.graph(), frozenset({1})).graph
    assert [item.op for item in graph.nodes] == ["input", "slice", "matmul", "output"]


def test_many_pieces_stay_together() -> None:
    p = new_kernel_graph()
    rows = [p.new_input((1, 8), "float32", f"x{i}") for i in range(9)]
    p.mark_output(p.sum(p.exp(p.concat(rows, 0)), 0))
    assert dissolve(p.graph()).graph == p.graph()


def test_a_program_without_slices_is_left_alone() -> None:
    p = new_kernel_graph()
    p.mark_output(p.exp(p.new_input((2, 3), "float32", "X")))
    program = p.graph()
    assert dissolve(program).graph is program
    assert core_of(program) is None


def test_halves_are_joined_next_to_a_product_that_takes_them_whole() -> None:
    p = new_kernel_graph()
    x, cos, sin, keys = p.new_input((4, 1, 16)), p.new_input((1, 16)), p.new_input((1, 16)), p.new_input((4, 16, 8))
    turned = p.concat([-p.slice(x, 2, 8, 16), p.slice(x, 2, 0, 8)], 2)
    written = p.index_write(keys, p.new_input((1,), dtype="int64"), p.new_input((4, 16, 1)), dim=2)
    p.mark_output((x * cos + turned * sin) @ written)
    program = expand(p.graph())
    graph = dissolve(program).graph
    [product] = [item for item in graph.nodes if item.op == "matmul"]
    joined = graph.nodes[graph.makers[product.operands[0]]]
    assert joined.op == "concat" and {graph.nodes[graph.makers[i]].op for i in joined.operands} == {"add"}
    assert verify(graph, program).equal
