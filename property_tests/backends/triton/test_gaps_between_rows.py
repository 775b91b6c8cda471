"""A kernel stores rows with gaps between them in whole vectors, and nothing beside the memory of its result."""

import pytest

from mirage_eg.backends.launches.aligned_rows import with_gaps
from mirage_eg.backends.runtime.array_library import ArrayLayout
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.ir.written_inputs import with_output_marks
from property_tests.support.hand_written import error_of


def head(columns: int, tiles: int) -> Graph:
    """x · wᵀ with gaps between the rows of its result, which is cut into so many tiles."""
    graph, block = new_kernel_graph(), new_threadblock_graph((2, tiles), forloop_range=2)
    x, w = graph.new_input((32, 32), "bfloat16", "x"), graph.new_input((columns, 32), "bfloat16", "w")
    left, right = block.new_input(x, (0, -1), 1), block.new_input(w, (-1, 0), 1)
    block.new_output(block.forloop_accum(block.matmul(left, block.transpose(right, (1, 0)))), (0, 1))
    graph.mark_output(graph.customized([x, w], block)[0])
    program = graph.graph()
    return with_output_marks(program, [{"strides": with_gaps(program.output_types[0])}])


@pytest.mark.parametrize(("columns", "tiles"), [(33, 1), (33, 3), (57, 1), (34, 2), (45, 3)])
def test_gaps_are_written_and_nothing_behind_them(run_guarded: RunProgram, columns: int, tiles: int) -> None:
    graph = head(columns, tiles)
    assert error_of(run_guarded, graph) < 2e-2


def test_a_single_row_in_another_shape_has_no_gap(run_guarded: RunProgram) -> None:
    graph, block = new_kernel_graph(), new_threadblock_graph((1,))
    x = graph.new_input((33,), "bfloat16", "x")
    block.new_output(block.scale(block.new_input(x, (-1,)), 2), (-1,))
    graph.mark_output(graph.reshape(graph.customized([x], block)[0], (1, 33)))
    program = with_output_marks(graph.graph(), [{"strides": (40, 1)}])
    assert error_of(run_guarded, program) < 2e-2


def test_rows_with_gaps_are_stored_in_vectors() -> None:
    with loaded(emit(head(33, 1))) as module:
        [(_, kernel)] = compile_module(module, "sm_90", resources=False)
    assert "st.global.v4.b32" in kernel.asm["ptx"] and "st.global.b16" not in kernel.asm["ptx"]


def test_memory_of_rows_with_gaps_has_the_last_gap() -> None:
    assert ArrayLayout("x", (2, 33), "bfloat16", (40, 1)).allocated == 80
    assert ArrayLayout("x", (2, 33), "bfloat16", (1, 2)).allocated == 66
