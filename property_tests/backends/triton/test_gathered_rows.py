"""Rows that an index chooses, such as the weights of experts, are read where they are: by blocks, in tiles, through views."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mirage_eg import new_kernel_graph, new_threadblock_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph

EXPERTS, WIDTH, COLUMNS = 6, 32, 48
CHOSEN = np.array([[5, 0, -1], [2, 2, -6]])


def doubled(p: KernelGraph, x: Tensor, grid: Sequence[int], imap: Sequence[int]) -> Tensor:
    """2 x, in blocks of this grid."""
    block = new_threadblock_graph(grid)
    block.new_output(block.scale(block.new_input(x, imap), 2), imap)
    [result] = p.customized([x], block)
    return result


def products(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    """The product of one row with each chosen weight, of some columns a block, in a loop."""
    rows = p.gather(weights, index)
    block = new_threadblock_graph((index.shape[0], index.shape[1], 3), forloop_range=2)
    x = p.slice(p.slice(weights, 0, 0, 1), 2, 0, WIDTH)
    left = block.new_input(x, (-1, -1, -1), 2)
    right = block.new_input(rows, (0, 1, 3), 2)
    block.new_output(block.forloop_accum(block.matmul(left, right)), (0, 1, 3))
    [result] = p.customized([x, rows], block)
    return result


def a_row_a_block(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    return doubled(p, p.gather(weights, index), (2, 3), (0, 1))


def rows_of_a_ragged_tile(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    return doubled(p, p.gather(weights, p.reshape(index, (6,))), (2, 2), (0, 2))


def along_an_inner_dim(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    return doubled(p, p.gather(weights, index, dim=1), (3,), (2,))


def part_of_each_row(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    return doubled(p, p.slice(p.gather(weights, index), 3, 16, 48), (3,), (1,))


def rows_in_another_order(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    rows = p.transpose(p.reshape(p.gather(weights, index), (6, WIDTH, COLUMNS)), (1, 0, 2))
    return doubled(p, p.slice(rows, 1, 1, 6, 2), (2, 3), (0, 1))


def of_what_a_kernel_makes(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    return a_row_a_block(p, doubled(p, weights, (3,), (0,)), index)


def by_what_the_library_finds(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    return a_row_a_block(p, weights, p.argsort(index, dim=0))


def by_a_column_of_indices(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    return doubled(p, p.gather(weights, p.reshape(p.slice(index, 1, 2, 3), (2,))), (2,), (0,))


def concatenated(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    """Rows of several tables beside each other, each by a column of the indices, and what is not chosen."""
    rows = [p.gather(weights, p.reshape(p.slice(index, 1, place, place + 1), (2,))) for place in range(3)]
    return p.concat([rows[0], p.slice(weights, 0, 1, 3), *rows[1:]], 1)


VIEWS = [products, a_row_a_block, rows_of_a_ragged_tile, along_an_inner_dim, part_of_each_row, rows_in_another_order]
VIEWS += [of_what_a_kernel_makes, by_what_the_library_finds, by_a_column_of_indices, concatenated]


def read_twice(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    """By the library too, which needs a copy."""
    rows = p.gather(weights, index)
    return p.add(doubled(p, rows, (2, 3), (0, 1)), rows)


def joined_rows(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    """Rows in one dim with what a row has: no strides."""
    return doubled(p, p.reshape(p.gather(weights, index), (2, 3 * WIDTH, COLUMNS)), (2,), (0,))


def chosen_again(p: KernelGraph, weights: Tensor, index: Tensor) -> Tensor:
    rows = p.gather(weights, index)
    return doubled(p, p.gather(rows, p.reshape(index, (6,)), dim=2), (2,), (0,))


Body = Callable[[KernelGraph, Tensor, Tensor], Tensor]


def program(body: Body, kind: str = "int64") -> Graph:
    p = new_kernel_graph()
    p.mark_output(body(p, p.new_input((EXPERTS, WIDTH, COLUMNS), "float32", "W"), p.new_input((2, 3), kind, "chosen")))
    return p.graph()


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize("body", [*VIEWS, read_twice, joined_rows, chosen_again])
def test_chosen_rows_are_right(run_program: RunProgram, body: Body, kind: str) -> None:
    graph = program(body, kind)
    arrays = [np.random.default_rng(1).normal(size=(EXPERTS, WIDTH, COLUMNS)), CHOSEN]
    [expected] = evaluate(graph, arrays, FloatAlgebra())
    [result] = run_program(emit(graph), arrays)
    assert np.allclose(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("body", [a_row_a_block, of_what_a_kernel_makes, by_what_the_library_finds])
def test_rows_are_chosen_in_dependent_kernels(run_program: RunProgram, body: Body) -> None:
    graph = program(body)
    arrays = [np.random.default_rng(1).normal(size=(EXPERTS, WIDTH, COLUMNS)), CHOSEN]
    [result] = run_program(emit(graph, schedule=Schedule(dependent_launch=True)), arrays)
    assert np.allclose(result, evaluate(graph, arrays, FloatAlgebra())[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("body", VIEWS)
def test_nothing_is_launched_for_chosen_rows(body: Body) -> None:
    graph = program(body)
    kinds = {graph.nodes[launch.nodes[0]].op: launch.kind for launch in launches_of(graph).launches}
    assert kinds["gather"] is LaunchKind.VIEW
    assert "gather" not in emit(graph).split("def launch")[1]


@pytest.mark.parametrize("body", [read_twice, joined_rows])
def test_rows_without_strides_are_copied(body: Body) -> None:
    graph = program(body)
    kinds = {graph.nodes[launch.nodes[0]].op: launch.kind for launch in launches_of(graph).launches}
    assert kinds["gather"] is LaunchKind.LIBRARY


def test_weights_that_are_not_chosen_cost_nothing() -> None:
    def bytes_of(experts: int) -> int:
        p = new_kernel_graph()
        weights = p.new_input((experts, 512, 512), "float16", "W")
        p.mark_output(doubled(p, p.gather(weights, p.new_input((8,), "int64", "chosen")), (8,), (0,)))
        [cost] = predict(p.graph(), DEVICES["H100"])
        return cost.dram_bytes

    assert bytes_of(8) == bytes_of(128) == 2 * 8 * 512 * 512 * 2


def test_a_concatenation_of_chosen_rows_is_one_kernel() -> None:
    assert [launch.kind for launch in launches_of(program(concatenated)).kernels] == [LaunchKind.CONCATENATION]


@pytest.mark.parametrize("body", [products, a_row_a_block, rows_of_a_ragged_tile, concatenated])
def test_an_index_beyond_the_rows_reads_no_other_memory(run_guarded: RunProgram, body: Body) -> None:
    arrays = [np.ones((EXPERTS, WIDTH, COLUMNS)), np.array([[7, 10**9, -7], [-(10**9), 0, 1]])]
    [result] = run_guarded(emit(program(body)), arrays)
    assert (result == {products: WIDTH, concatenated: 1}.get(body, 2)).all()
