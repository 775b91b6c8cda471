"""Predicted times of products with weights of four bits are near those of an H100, whose multiprocessors an H200 has, too."""

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph

ROWS, TERMS, COLUMNS, GROUP = 16, 4096, 14336, 128


def product(columns: int, loop: int) -> Graph:
    """x times the weights of so many columns a block, unpacked and scaled in its loop over groups of terms."""
    g, groups, block = new_kernel_graph(), TERMS // GROUP, new_threadblock_graph((COLUMNS // columns,), forloop_range=loop)
    x, words = g.new_input((ROWS, groups, GROUP // 2, 2), "float16"), g.new_input((COLUMNS, groups, GROUP // 2, 1), "uint8")
    places, scales = g.new_input((2,), "uint8"), g.new_input((COLUMNS, groups, 1), "float16")
    left, word = block.new_input(x, (-1,), 1), block.new_input(words, (0,), 1)
    place, scale = block.new_input(places, (-1,)), block.new_input(scales, (0,), 1)
    numbers = block.shift(block.cast(block.op("low_bits", block.op("right_shift_by", word, place), bits=4), "float16"), -8)
    weight = block.mul(block.reshape(scale, (columns, groups // loop, 1, 1)), numbers)
    right = block.reshape(block.transpose(weight, (1, 2, 3, 0)), (TERMS // loop, columns))
    total = block.forloop_accum(block.matmul(block.reshape(left, (ROWS, TERMS // loop)), right))
    block.new_output(total, (1,))
    g.customized([x, words, places, scales], block)
    return g.graph()


MEASURED = {(32, 32): 24, (64, 32): 22, (128, 32): 24}


@pytest.mark.parametrize(("columns", "loop"), MEASURED)
def test_predicted_times_are_near_measured_ones(columns: int, loop: int) -> None:
    assert 0.7 < predict_us(product(columns, loop), DEVICES["H200"]) / MEASURED[columns, loop] < 1.5


def test_tiles_of_sixteen_columns_are_slower_than_wider_ones() -> None:
    narrow, wide = (predict_us(product(columns, 8), DEVICES["H200"]) for columns in (16, 32))
    assert narrow > 1.2 * wide
