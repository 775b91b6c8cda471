"""Loops over vectors take longer in few blocks, whose iterations wait for each other: predicted as measured on an H100."""

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph

ROWS, TERMS, COLUMNS = 2, 14336, 4096
MEASURED = {(4, 2): 78.7, (8, 4): 86.5, (16, 8): 89.3, (32, 16): 116.4, (64, 32): 134.6}  # by columns of a block, iterations


def products(columns: int, loop: int) -> Graph:
    """Each of two rows times a matrix of its own, as those of chosen experts."""
    g, block = new_kernel_graph(), new_threadblock_graph((COLUMNS // columns, ROWS), forloop_range=loop)
    x, w = g.new_input((ROWS, 1, TERMS), "bfloat16"), g.new_input((ROWS, COLUMNS, TERMS), "bfloat16")
    left, right = block.new_input(x, (-1, 0), 2), block.new_input(w, (1, 0), 2)
    block.new_output(block.forloop_accum(block.matmul(left, block.transpose(right, (0, 2, 1)))), (2, 0))
    g.customized([x, w], block)
    return g.graph()


def test_predicted_times_grow_as_blocks_become_few() -> None:
    predicted = [predict_us(products(*it), DEVICES["H100"]) for it in MEASURED]
    assert predicted == pytest.approx([*MEASURED.values()], rel=0.37)
    assert predicted[2:] == sorted(predicted[2:]) and predicted[-1] > 1.15 * min(predicted)
