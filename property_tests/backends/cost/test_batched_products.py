"""A matrix that multiplies each matrix of a batch does the work of all of them, whichever operand has the batch."""

import pytest

from mirage_eg.backends.cost.block_cost import BlockWork, block_work
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.threadblock_graph import new_threadblock_graph


def work(left: Shape, right: Shape) -> BlockWork:
    """The work of a block that multiplies two whole tensors."""
    kernel = new_kernel_graph()
    operands = [kernel.new_input(shape, "bfloat16", name) for shape, name in ((left, "w"), (right, "x"))]
    block = new_threadblock_graph((1,))
    tiles = [block.new_input(value, (REPLICATED,)) for value in operands]
    block.new_output(block.matmul(*tiles), (REPLICATED,))
    kernel.customized(operands, block)
    [found] = kernel.graph().blocks
    return block_work(found)


@pytest.mark.parametrize("columns", [1, 32])
def test_a_matrix_times_a_batch_of_matrices_counts_each_of_them(columns: int) -> None:
    of_one, of_all = work((64, 32), (32, columns)), work((64, 32), (16, 32, columns))
    assert (of_all.flops, of_all.arithmetic, of_all.held) == tuple(
        16 * it for it in (of_one.flops, of_one.arithmetic, of_one.held)
    )


def _us(left: Shape, right: Shape) -> float:
    program = new_kernel_graph()
    operands = [program.new_input(shape, "bfloat16") for shape in (left, right)]
    program.mark_output(program.matmul(*operands))
    return predict_us(program.graph(), DEVICES["H100"])


def test_operands_that_torch_repeats_in_memory_are_written_and_read() -> None:
    keys = (16, 8, 1, 128, 4096)
    once, folded = _us((16, 8, 4, 128), (16, 8, 128, 4096)), _us((16, 8, 4, 1, 128), keys)
    assert folded == pytest.approx(once)
    assert _us((16, 1, 4, 1, 128), (16, 8, 4, 128, 4096)) < 5 * once  # small rows are repeated
    assert _us((1, 8, 4, 128), (16, 8, 128, 4096)) == pytest.approx(once, rel=0.1)
    assert _us((16, 8, 4, 128), (1, 8, 128, 4096)) > 1.5 * once
