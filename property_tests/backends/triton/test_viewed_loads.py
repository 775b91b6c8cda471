"""Loads behind which dims are split or joined: each element is loaded into its place, without a gather."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from property_tests.support.hand_written import inputs_of


def joined_heads(heads: int, tokens: int, width: int, columns: int, loop: int, over: int) -> Graph:
    """The product behind attention: rows of all heads, joined, times a weight; the loop walks over heads or their elements."""
    graph = new_kernel_graph()
    x = graph.new_input((heads, tokens, width), "float32", name="x")
    w = graph.new_input((columns, heads, width), "float32", name="w")
    block = new_threadblock_graph((2, 1), forloop_range=loop)
    rows = block.new_input(x, (1, REPLICATED), forloop_dim=over)
    weight = block.new_input(w, (REPLICATED, REPLICATED), forloop_dim=max(over, 1))
    heads, width = rows.shape[0], rows.shape[2]
    left = block.reshape(block.transpose(rows, (1, 0, 2)), (tokens // 2, heads * width))
    right = block.reshape(block.transpose(weight, (1, 2, 0)), (heads * width, columns))
    block.new_output(block.forloop_accum(block.matmul(left, right)), (0, 1))
    graph.mark_output(graph.customized([x, w], block)[0])
    return graph.graph()


@settings(max_examples=8)
@given(
    heads=st.sampled_from([3, 4, 6]),
    tokens=st.sampled_from([4, 16, 34]),
    width=st.sampled_from([8, 12, 16]),
    columns=st.sampled_from([5, 16]),
    loop=st.sampled_from([1, 2]),
)
def test_joined_dims_are_loaded_at_once(
    run_program: RunProgram, heads: int, tokens: int, width: int, columns: int, loop: int
) -> None:
    graph = joined_heads(heads, tokens, width, columns, loop, over=2)
    source, arrays = emit(graph), inputs_of(graph)
    assert "tl.gather" not in source and "tl.reshape" not in source
    [wanted], [got] = evaluate(graph, arrays, FloatAlgebra()), run_program(source, arrays)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("over", [0, 2])
def test_the_loop_may_walk_over_any_part_of_the_joined_dim(run_program: RunProgram, over: int) -> None:
    graph = joined_heads(4, 16, 16, 16, 4, over)
    source, arrays = emit(graph), inputs_of(graph)
    assert "tl.gather" not in source
    [wanted], [got] = evaluate(graph, arrays, FloatAlgebra()), run_program(source, arrays)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_tile_that_others_read_as_it_is_moves_in_registers(run_program: RunProgram) -> None:
    graph = new_kernel_graph()
    x = graph.new_input((6, 4), "float32", name="x")
    block = new_threadblock_graph((1, 1))
    tile = block.new_input(x, (REPLICATED, REPLICATED))
    block.new_output(tile, (REPLICATED, REPLICATED))
    block.new_output(block.reshape(tile, (3, 8)), (REPLICATED, REPLICATED))
    for out in graph.customized([x], block):
        graph.mark_output(out)
    source, arrays = emit(graph.graph()), inputs_of(graph.graph())
    for got, wanted in zip(run_program(source, arrays), evaluate(graph.graph(), arrays, FloatAlgebra()), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert source.count("tl.load(") == 1


@settings(max_examples=10)
@given(
    extents=st.sampled_from([(29, 2), (5, 2), (12, 4), (3, 5), (6, 2, 3), (2, 29)]),
    positions=st.sampled_from([16, 49, 20]),
    parts=st.sampled_from([1, 3]),
    order=st.permutations([0, 1, 2]),
)
def test_terms_of_a_product_are_in_an_order_that_memory_has(
    run_program: RunProgram, extents: tuple[int, ...], positions: int, parts: int, order: list[int]
) -> None:
    """The product behind a shuffle of channels, whose positions are cut into parts that may be of unequal extents."""
    graph, count = new_kernel_graph(), len(extents)
    dims = [dim for dim in order if dim < count]  # of the channels in memory
    x = graph.new_input((2, *(extents[dim] for dim in dims), positions), "float32", name="x")
    w = graph.new_input((18, *extents), "float32", name="w")
    block = new_threadblock_graph((2, parts))
    back = (0, *(1 + dims.index(dim) for dim in range(count)), 1 + count)
    terms = block.reshape(block.transpose(block.new_input(x, (0, 1 + count)), back), (1, prod(extents), -(-positions // parts)))
    weight = block.reshape(block.new_input(w, (REPLICATED, REPLICATED)), (1, 18, prod(extents)))
    block.new_output(block.matmul(weight, terms), (0, 2))
    graph.mark_output(graph.customized([x, w], block)[0])
    source, arrays = emit(graph.graph()), inputs_of(graph.graph())
    assert "tl.gather" not in source
    [wanted], [got] = evaluate(graph.graph(), arrays, FloatAlgebra()), run_program(source, arrays)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_neighbours_of_a_shuffle_are_neighbours_of_its_product() -> None:
    graph, block = new_kernel_graph(), new_threadblock_graph((13,))
    x, w = graph.new_input((2, 58, 784), "float16", name="x"), graph.new_input((58, 58, 2), "float16", name="w")
    terms = block.reshape(block.transpose(block.new_input(x, (2,)), (1, 0, 2)), (116, 64))
    block.new_output(block.matmul(block.reshape(block.new_input(w, (REPLICATED,)), (58, 116)), terms), (1,))
    graph.mark_output(graph.customized([x, w], block)[0])
    source = emit(graph.graph())
    assert source.count("r128[:, None] % 64) < 58") == source.count("r128[None, :] % 64) < 58") == 1 and "gather" not in source
