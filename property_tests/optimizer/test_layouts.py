"""Layouts of intermediates: no choice is better, kernels keep to what was chosen, and the function stays."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.optimizer.layouts import (
    LayoutProblem,
    candidate_layouts,
    choose_layouts,
    intermediates,
    run_length,
    solve,
    solve_exactly,
    with_strides,
)
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.verify.reference import verify
from property_tests.backends.triton.test_arena import chains
from property_tests.support.hand_written import HAND_WRITTEN, inputs_of, worst
from property_tests.support.parameters import few

H100 = DEVICES["H100"]


@st.composite
def problems(draw: st.DrawFn) -> LayoutProblem:
    kernels = draw(st.integers(1, 3))
    times = st.integers(0, 20)
    access = tuple(
        tuple(tuple(draw(times) for _ in range(kernels)) for _ in range(draw(st.integers(1, 3))))
        for _ in range(draw(st.integers(0, 4)))
    )
    return LayoutProblem(access, tuple(draw(times) for _ in range(kernels)))


@settings(max_examples=150)
@given(problem=problems())
def test_no_layouts_are_better(problem: LayoutProblem) -> None:
    chosen, optimal = solve(problem)
    assert optimal
    every = [problem.objective(other) for other in product(*(range(len(orders)) for orders in problem.access))]
    assert problem.objective(chosen)[0] == min(every)[0]


@given(problem=problems())
def test_the_solver_proves_what_brute_force_finds(problem: LayoutProblem) -> None:
    chosen, optimal = solve_exactly(problem, (0,) * len(problem.access))
    assert optimal
    every = [problem.objective(other) for other in product(*(range(len(orders)) for orders in problem.access))]
    assert problem.objective(chosen) == min(every)


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), data=st.data())
def test_a_run_is_what_lies_one_behind_the_other(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Against the addresses of all elements of a tile at the start."""
    order = data.draw(st.permutations(range(len(shape))))
    dense = row_major(tuple(shape[dim] for dim in order))
    strides = tuple(dense[order.index(dim)] for dim in range(len(shape)))
    tile = tuple(data.draw(st.sampled_from([k for k in range(1, extent + 1) if extent % k == 0])) for extent in shape)
    places = {sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*tile)}
    run = next(i for i in range(1, len(places) + 2) if i not in places)
    assert run_length(tile, shape, strides) == run


def forced(graph: Graph, pick: int) -> Graph:
    """The µGraph with some offered layout of each intermediate, good or bad."""
    strides = {}
    for value in intermediates(graph):
        offered = candidate_layouts(graph, value)
        strides[value] = offered[pick % len(offered)][1]
    return with_strides(graph, strides)


@pytest.mark.parametrize("name", [name for name in HAND_WRITTEN if "split" in name])
@pytest.mark.parametrize("pick", few([1, 2, 3], 1))
def test_kernels_keep_to_any_layout(run_program: RunProgram, name: str, pick: int) -> None:
    graphs = HAND_WRITTEN[name]("float32")
    graph = forced(graphs.mugraph, pick)
    arrays = inputs_of(graphs.program)
    got = run_program(emit(graph, program=graphs.program), arrays)
    assert worst(got, evaluate(graphs.program, arrays, FloatAlgebra())) < 1e-4
    assert verify(graphs.program, graph).equal
    assert from_json(to_json(graph)) == graph


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=chains(), pick=st.integers(0, 5), seed=st.integers(0, 99))
def test_views_follow_any_layout(run_program: RunProgram, graph: Graph, pick: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((4, 6))
    for got, want in zip(run_program(emit(forced(graph, pick)), [x]), evaluate(graph, [x], FloatAlgebra()), strict=True):
        assert np.abs(got - want).max() <= 1e-4 * (1 + np.abs(want).max())


def columns_reader() -> Graph:
    """A kernel writes columns, another one reads columns: row-major is the wrong order."""
    graph = new_kernel_graph()
    x = graph.new_input((1024, 1024), "float16", name="X")
    for _ in range(2):
        block = new_threadblock_graph((256,))
        block.new_output(block.exp(block.new_input(x, (1,))), (1,))
        [x] = graph.customized([x], block)
    return graph.graph()


def test_what_is_written_and_read_by_columns_lies_in_columns() -> None:
    layouts = choose_layouts(columns_reader(), H100)
    [choice] = layouts.choices
    assert choice.order == (1, 0)
    assert choice.strides == (1, 1024)
    assert layouts.optimal
    assert choice.us < choice.row_major_us
    assert layouts.kernels_us < layouts.row_major_us
    assert '"float16", (1, 1024))' in emit(layouts.graph)


def test_what_is_written_and_read_by_rows_stays() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((1024, 1024), "float16", name="X")
    for _ in range(2):
        block = new_threadblock_graph((256,))
        block.new_output(block.exp(block.new_input(x, (0,))), (0,))
        [x] = graph.customized([x], block)
    layouts = choose_layouts(graph.graph(), H100)
    assert layouts.graph == graph.graph()
    assert layouts.kernels_us == layouts.row_major_us


def test_what_the_caller_gets_keeps_its_strides() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((64, 64), "float16", name="X")
    block = new_threadblock_graph((16,))
    block.new_output(block.exp(block.new_input(x, (1,))), (1,))
    graph.customized([x], block)
    assert not choose_layouts(graph.graph(), H100).choices


def test_all_orders_are_offered_where_no_view_stands_in_the_way() -> None:
    graph = columns_reader()
    [value] = intermediates(graph)
    assert len(candidate_layouts(graph, value)) == len(list(permutations(range(2))))


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_polishing_keeps_the_function_and_polishing_again_changes_nothing(name: str) -> None:
    graphs = HAND_WRITTEN[name]("float16")
    polished = optimize_mugraph(graphs.mugraph, H100).graph
    assert verify(graphs.program, polished).equal
    assert optimize_mugraph(polished, H100).graph == polished
