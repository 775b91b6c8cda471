"""A large tile that is only added behind a loop of products is loaded there, and holds no registers in the loop."""

from math import prod

import pytest

from mirage_eg.backends.cost.liveness import live_bytes
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.storage import late_loads
from mirage_eg.ir.builder import Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from property_tests.support.hand_written import inputs_of, worst


def layer(tile: tuple[int, int], in_loop: bool = False) -> Graph:
    """x w + r in tiles of so many rows and columns; `in_loop`: r is added in each of two iterations."""
    high, wide = tile
    given: list[Tensor] = []
    graph, block = new_kernel_graph(), new_threadblock_graph((2, 1), forloop_range=2)
    for name, shape in (("x", (2 * high, 32)), ("w", (32, wide)), ("r", (2 * high, wide))):
        given.append(graph.new_input(shape, "bfloat16", name))
    product = block.matmul(block.new_input(given[0], (0, -1), 1), block.new_input(given[1], (-1, 1), 0))
    r = block.new_input(given[2], (0, 1))
    total = block.forloop_accum(block.add(product, r)) if in_loop else block.add(block.forloop_accum(product), r)
    block.new_output(total, (0, 1))
    graph.mark_output(graph.customized(given, block)[0])
    return graph.graph()


@pytest.mark.parametrize(
    ("tile", "in_loop", "is_late"), [((128, 128), False, True), ((32, 64), False, False), ((128, 128), True, False)]
)
def test_large_tiles_that_are_added_behind_a_loop_are_loaded_there(
    run_program: RunProgram, tile: tuple[int, int], in_loop: bool, is_late: bool
) -> None:
    graph = layer(tile, in_loop)
    source, arrays = emit(graph), inputs_of(graph, scale=0.3)
    kernel = source[: source.index("# name")]
    assert (kernel.index("r = tl.load") > kernel.index("tl.dot")) == is_late == bool(late_loads(graph.blocks[0]))
    assert worst(run_program(source, arrays), evaluate(graph, arrays, FloatAlgebra())) < 2e-2


def test_they_take_no_registers() -> None:
    [block] = layer((128, 128)).blocks
    assert live_bytes(block) < 4 * (prod((128, 128)) + 128 * 32)
