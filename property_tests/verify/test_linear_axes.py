"""Summed axes in which all values are linear: a few of their indices decide, and where one value is not linear all are kept."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.testing import EVERY, as_program, block_graphs, every_mutant
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.restriction import restricted
from mirage_eg.verify.verdict import Equality

ROWS, K, COLUMNS = 64, 6, 96


def summed(change: Callable[[Any, Any], Any] = lambda graph, x: x, after: Callable[[Any, Any], Any] | None = None) -> Graph:
    """The sum over the columns of a function of X W."""
    graph = new_kernel_graph()
    x, w = graph.new_input((ROWS, K), "float32", "x"), graph.new_input((K, COLUMNS), "float32", "w")
    result = graph.sum(change(graph, x @ w), 1)
    graph.mark_output(graph.scale(after(graph, result) if after else result, Fraction(1, COLUMNS)))
    return graph.graph()


def weights_first(loop: int = 4, factor: Fraction = Fraction(1, COLUMNS), steps: bool = True, twice: bool = False) -> Graph:
    """X times the sum over the columns of W, which a loop of one kernel sums; it reads one tile in each iteration unless
    `steps`."""
    graph = new_kernel_graph()
    x, w = graph.new_input((ROWS, K), "float32", "x"), graph.new_input((K, COLUMNS), "float32", "w")
    block = new_threadblock_graph((2,), forloop_range=loop)
    tile = block.new_input(w if steps else graph.slice(w, 1, 0, COLUMNS // loop), (0,), 1 if steps else REPLICATED)
    tile = block.add(tile, tile) if twice else tile
    block.new_output(block.reduction(block.forloop_accum(tile), 1), (0,))
    [rows] = graph.customized([w if steps else graph.slice(w, 1, 0, COLUMNS // loop)], block)
    graph.mark_output(graph.scale(x @ rows, factor))
    return graph.graph()


def kept(program: Graph, candidate: Graph) -> tuple[int, ...]:
    small = restricted(expand(program), candidate, sums=True)
    return (small.program if small else program).input_types[1].shape


def test_few_columns_decide_where_weights_are_summed_first() -> None:
    program, candidate = summed(), weights_first()
    assert kept(program, candidate)[1] < COLUMNS
    assert restricted(expand(program), candidate).program.input_types[1].shape[1] == COLUMNS  # type: ignore[union-attr]
    assert BlockReference(program).check(candidate).verdict is Equality.EQUAL


@pytest.mark.parametrize(
    "wrong",
    [{"factor": Fraction(1, COLUMNS - 1)}, {"twice": True}, {"steps": False}, {"loop": 1, "factor": Fraction(4, COLUMNS)}],
)
def test_a_wrong_sum_of_weights_is_not_equal(wrong: dict[str, Any]) -> None:
    assert BlockReference(summed()).check(weights_first(**wrong)).verdict is Equality.NOT_EQUAL


def averaged(weights: bool, columns: int = COLUMNS, loop: int = 0) -> Graph:
    """The mean over the columns of X W + b: of the result, or of W and b, by a loop of one kernel if one is given."""
    graph = new_kernel_graph()
    x, w = graph.new_input((ROWS, K), "float32", "x"), graph.new_input((K, COLUMNS), "float32", "w")
    b = graph.new_input((COLUMNS,), "float32", "b")
    if not weights:
        graph.mark_output(graph.mean(x @ w + b, 1))
        return graph.graph()
    rows = graph.mean(w, 1) if columns == COLUMNS else graph.scale(graph.sum(w, 1), Fraction(1, columns))
    if loop:
        block = new_threadblock_graph((2,), forloop_range=loop)
        block.new_output(block.forloop_accum(block.new_input(w, (0,), 1), "mean", 1), (0,))
        [rows] = graph.customized([w], block)
    graph.mark_output(x @ rows + graph.mean(b, 0))
    return graph.graph()


@pytest.mark.parametrize("loop", [0, 4])
def test_few_columns_decide_about_a_mean(loop: int) -> None:
    assert kept(averaged(False), averaged(True, loop=loop))[1] < COLUMNS
    assert BlockReference(averaged(False)).check(averaged(True, loop=loop)).verdict is Equality.EQUAL


@pytest.mark.parametrize("columns", [1, 2, COLUMNS - 1, COLUMNS // 2])
def test_a_mean_over_another_number_of_columns_is_not_equal(columns: int) -> None:
    assert kept(averaged(False), averaged(True, columns))[1] < COLUMNS
    assert BlockReference(averaged(False)).check(averaged(True, columns)).verdict is Equality.NOT_EQUAL


def shifted_mean(loop: int = 0, factor: Fraction = Fraction(1)) -> Graph:
    """The mean over the columns of W plus b, or a loop's means of both, of which b is the same in all iterations."""
    graph = new_kernel_graph()
    w, b = graph.new_input((K, COLUMNS), "float32", "w"), graph.new_input((K, 1), "float32", "b")
    rows = graph.mean(w, 1) + b
    if loop:
        block = new_threadblock_graph((2,), forloop_range=loop)
        means = block.forloop_accum(block.new_input(w, (0,), 1), "mean", 1)
        same = block.forloop_accum(block.new_input(b, (0,), REPLICATED), "mean")
        block.new_output(block.add(means, block.scale(same, factor)), (0,))
        [rows] = graph.customized([w, b], block)
    graph.mark_output(rows)
    return graph.graph()


@pytest.mark.parametrize(("loop", "factor"), [(3, Fraction(1)), (3, Fraction(3, 2)), (8, Fraction(1)), (8, Fraction(4))])
def test_a_loops_mean_of_what_is_the_same_in_all_iterations_is_that(loop: int, factor: Fraction) -> None:
    assert BlockReference(shifted_mean()).check(shifted_mean(loop, factor)).equal is (factor == 1)


NOT_LINEAR = {
    "square": lambda graph, x: graph.square(x),
    "shift": lambda graph, x: graph.shift(x, 1),
    "product with itself": lambda graph, x: graph.mul(x, x),
    "maximum": lambda graph, x: graph.maximum(x, graph.scale(x, 2)),
    "divisor": lambda graph, x: graph.div(graph.sum(x, 1), x),
    "distinguished": lambda graph, x: graph.cumsum(x, 1),
    "affine": lambda graph, x: graph.add(x, graph.sum(x, 1)),
}


@pytest.mark.parametrize("op", NOT_LINEAR)
def test_axes_in_which_a_value_is_not_linear_keep_their_extents(op: str) -> None:
    program = summed(NOT_LINEAR[op])
    assert kept(program, program)[1] == COLUMNS


LINEAR = {
    "scale": lambda graph, x: graph.scale(x, 2),
    "sum of linear ones": lambda graph, x: graph.sub(x, graph.scale(x, Fraction(1, 2))),
    "coefficient": lambda graph, x: graph.mul(x, graph.exp(graph.scale(graph.sum(x, 1), Fraction(1, 100)))),
    "quotient": lambda graph, x: graph.div(x, graph.shift(graph.square(graph.sum(x, 1)), 1)),
}


@pytest.mark.parametrize("op", LINEAR)
def test_axes_in_which_all_values_are_linear_have_few_indices(op: str) -> None:
    """The twin, with any function behind the sum."""
    program = summed(LINEAR[op], lambda graph, x: graph.silu(x))
    assert kept(program, program)[1] < COLUMNS
    assert BlockReference(program).check(program).verdict is Equality.EQUAL


@settings(max_examples=10)
@given(block=block_graphs(EVERY, attempts=8))
def test_random_blocks_and_their_mutants_have_the_verdicts_of_the_whole(block: Graph) -> None:
    mugraph = as_program(block)
    try:
        program = flatten(mugraph)
        whole, blocks = Reference(program), BlockReference(program)
        whole.check(program)
    except UnsupportedError:  # ragged, or it divides by zero everywhere
        assume(False)
    for graph in (mugraph, *[as_program(it) for it in every_mutant(block)][:4]):
        if graph.output_types == program.output_types and graph.input_types == program.input_types:
            assert (blocks.check(graph).verdict is Equality.EQUAL) == (whole.check(graph).verdict is Equality.EQUAL), str(graph)
