"""Cumulative sums of rows are generated kernels, and so are those from the end of each row."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from property_tests.support.hand_written import ROUNDING, error_of


def program(reverse: bool = False, dim: int = 1) -> Graph:
    p = new_kernel_graph()
    x = p.new_input((3, 5000), "float32", "x")
    sums = from_the_end(p, x, dim) if reverse else p.cumsum(p.exp(x), dim)
    p.mark_output(sums)
    return p.graph()


def from_the_end(p: KernelGraph, x: Tensor, dim: int) -> Tensor:
    return p.op("flip", p.cumsum(p.op("flip", x, dims=(1,)), dim), dims=(1,))


def scanned(graph: Graph) -> list[int]:
    """The numbers of ops in the launches of scans."""
    return [len(launch.nodes) for launch in launches_of(graph).of_kind(LaunchKind.SCAN)]


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_from_either_end_are_right(run_program: RunProgram, reverse: bool) -> None:
    assert error_of(run_program, program(reverse)) < ROUNDING["float32"]


def test_reversals_around_a_cumulative_sum_are_one_launch_with_it() -> None:
    assert scanned(program()) == [2]
    assert scanned(program(reverse=True)) == [3]


@pytest.mark.parametrize("graph", [program(dim=0), program(reverse=True, dim=0)])
def test_a_cumulative_sum_along_another_dim_is_left_to_the_library(graph: Graph) -> None:
    assert scanned(graph) == []


def test_a_reversal_that_others_read_is_no_part_of_a_scan() -> None:
    p = new_kernel_graph()
    x = p.op("flip", p.new_input((4, 64), "float32", "x"), dims=(1,))
    p.mark_output(p.op("flip", p.cumsum(x, 1), dims=(1,)))
    p.mark_output(x)
    assert scanned(p.graph()) == [1]


def behind_others(cut: tuple[int, int] = (0, 4999), before: int = 1, dim: int = 1) -> Graph:
    """Cumulative sums of a part of each row behind other elements; those behind one zero are an exclusive sum."""
    p = new_kernel_graph()
    x, first = p.new_input((3, 5000), "float32", "x"), p.new_input((3, before), "float32", "first")
    sums = p.cumsum(p.op("slice", x, dim=1, start=cut[0], stop=cut[1], step=1), 1)
    p.mark_output(p.op("concat", first, sums, dim=1))
    return p.graph()


@pytest.mark.parametrize("graph", [behind_others(), behind_others((7, 2000), before=2500)])
def test_sums_of_a_part_of_each_row_behind_other_elements_are_one_launch(run_program: RunProgram, graph: Graph) -> None:
    assert scanned(graph) == [3]
    assert error_of(run_program, graph) < ROUNDING["float32"]


def of_products(reverse: bool = False, name: str = "mask", dtype: str = "bool") -> Graph:
    p = new_kernel_graph()
    x, mask = p.new_input((3, 5000), "float32", "x"), p.new_input((3, 5000), dtype, name)
    addend = p.shift(p.mul(x, mask), 2)
    p.mark_output(from_the_end(p, addend, 1) if reverse else p.cumsum(addend, 1))
    return p.graph()


@pytest.mark.parametrize("reverse", [False, True])
def test_elementwise_ops_before_a_cumulative_sum_are_in_its_kernel(run_program: RunProgram, reverse: bool) -> None:
    graph = of_products(reverse)
    assert scanned(graph) == [5 if reverse else 3]
    assert len(launches_of(graph).kernels) == 1
    assert error_of(run_program, graph) < ROUNDING["float32"]


def test_an_addend_that_others_read_is_no_part_of_a_scan() -> None:
    p = new_kernel_graph()
    addend = p.exp(p.new_input((4, 64), "float32", "x"))
    p.mark_output(p.cumsum(addend, 1))
    p.mark_output(addend)
    assert scanned(p.graph()) == [1]


def test_a_sum_that_is_the_bias_of_a_product_is_no_part_of_a_scan() -> None:
    p = new_kernel_graph()
    y = p.new_input((1, 8), "float32", "x") @ p.new_input((8, 64), "float32", "w") + p.new_input((1, 64), "float32", "bias")
    p.mark_output(p.cumsum(p.exp(y), 1))
    assert scanned(p.graph()) == [2]
    emit(p.graph())


def test_a_kernel_of_several_results_behind_a_scan_is_no_part_of_it() -> None:
    p, block = new_kernel_graph(), new_threadblock_graph((4,))
    sums = p.cumsum(p.op("flip", p.new_input((4, 64), "float32", "x"), dims=(1,)), 1)
    tile = block.new_input(sums, (0,))
    for result in (block.exp(tile), block.square(tile)):
        block.new_output(result, (0,))
    for result in p.customized([sums], block):
        p.mark_output(result)
    assert scanned(p.graph()) == [1]


def test_a_cut_that_others_read_is_no_part_of_a_scan() -> None:
    p = new_kernel_graph()
    part = p.op("slice", p.new_input((4, 64), "float32", "x"), dim=1, start=0, stop=63, step=1)
    p.mark_output(p.op("concat", p.new_input((4, 1), "float32", "first"), p.cumsum(part, 1), dim=1))
    p.mark_output(part)
    assert 3 not in scanned(p.graph())
