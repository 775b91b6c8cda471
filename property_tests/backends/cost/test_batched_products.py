"""A matrix that multiplies each matrix of a batch does the work of all of them, whichever operand has the batch."""

import pytest

from mirage_eg.backends.cost.block_cost import BlockWork, block_work
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
