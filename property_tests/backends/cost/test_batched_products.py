"""A matrix that multiplies each matrix of a batch does the work of all of them, whichever operand has the batch."""

import pytest

from mirage_eg.backends.cost.block_cost import BlockWork, block_work, without_wgmma
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.triton.warps import with_warps
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
    assert (of_all.arithmetic, of_all.held) == (16 * of_one.arithmetic, 16 * of_one.held)
    assert of_all.flops == int(16 * of_one.flops * without_wgmma(batched=True, rows=64))


@pytest.mark.parametrize(("grid", "us"), [((16, 32), 3574), ((8, 64), 2020)])
def test_a_batched_product_takes_the_predicted_time(grid: tuple[int, int], us: float) -> None:
    """1,024 × 8,192 × 8,192 in float32 on an H200 (Triton 3.6): in a batch of groups of 16 columns, and without."""
    batched = grid == (16, 32)
    g, block = new_kernel_graph(), new_threadblock_graph(grid, forloop_range=256)
    x, w = g.new_input((1024, 8192), "float32"), g.new_input((512, 8192, 16) if batched else (8192, 8192), "float32")
    columns = (REPLICATED, 0 if batched else 1)
    product = block.matmul(block.new_input(x, (0, REPLICATED), 1), block.new_input(w, columns, 1 if batched else 0))
    block.new_output(block.forloop_accum(product), (1, 0) if batched else (0, 1))
    [result] = g.customized([x, w], block)
    g.mark_output(result)
    [cost] = predict(with_warps(g.graph(), 8), DEVICES["H200"])
    assert 0.85 < cost.us / us < 1.15


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
