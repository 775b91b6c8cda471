"""The cost of an attention of few rows, whose scores each warp of a block computes."""

import pytest

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.graph import Graph

MEASURED = [((8, 8), 256, 128, 20.2), ((8, 4), 256, 64, 10.1), ((64, 2), 64, 128, 25.4), ((64, 2), 32, 128, 36.0)]
"""Blocks by heads and columns, keys of an iteration, width of a head, microseconds on an H100: one token, 1,024 keys."""


def attention(grid: tuple[int, int], keys: int, width: int) -> Graph:
    program = mi.new_kernel_graph()
    heads = grid[0]
    q, k, v = (program.new_input((heads, rows, width), "float16", name) for rows, name in ((4, "q"), (1024, "k"), (1024, "v")))
    block = mi.new_threadblock_graph(grid, forloop_range=1024 // keys)
    queries, rows = block.new_input(q, (0, -1)), block.new_input(k, (0, -1), 1)
    values = block.new_input(v, (0, 2), 1)
    exponentials = block.exp(block.matmul(queries, block.transpose(rows, (0, 2, 1))))
    products = block.forloop_accum(block.matmul(exponentials, values))
    block.new_output(block.div(products, block.forloop_accum(block.sum(exponentials, 2))), (0, 2))
    program.mark_output(*program.customized([q, k, v], block), name="y")
    return program.graph()


@pytest.mark.parametrize(("grid", "keys", "width", "us"), MEASURED)
def test_a_loop_over_keys_takes_as_long_as_measured(grid: tuple[int, int], keys: int, width: int, us: float) -> None:
    assert 0.65 < predict_us(attention(grid, keys, width), DEVICES["H100"]) / us < 1.2
