"""A norm in the kernel of its product costs what nothing hides: predicted as measured on an H200 (torch 2.11, Triton 3.6)."""

import pytest

from mirage_eg.backends.cost.block_cost import block_work
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph

H200 = DEVICES["H200"]
TERMS, COLUMNS = 2560, 51200
# Columns of a block, iterations, threads: µs of an RMSNorm of one row and a product in float16.
OF_ONE_ROW = {
    (8, 1, 512): 72.7,
    (2, 1, 256): 78.1,
    (64, 5, 512): 92.4,
    (8, 5, 128): 63.2,
    (32, 10, 128): 66.4,
    (128, 20, 256): 85.7,
}
# The same of eight rows, with tl.dot.
OF_EIGHT_ROWS = {(64, 5, 128): 86.5, (256, 20, 128): 90.3, (32, 40, 128): 243.7, (128, 10, 128): 88.0, (64, 20, 128): 104.8}
WITHOUT_NORM_US = 65.9  # of eight rows, in the first of these tiles


def norm_and_product(rows: int, columns: int, loop: int, threads: int, normed: bool = True) -> Graph:
    """The rows, divided by their roots of mean squares if `normed`, times a weight with its terms in rows."""
    g, block = new_kernel_graph(), new_threadblock_graph((COLUMNS // columns,), (threads,), loop)
    x, w = g.new_input((rows, TERMS), "float16"), g.new_input((COLUMNS, TERMS), "float16")
    whole = block.new_input(x, (REPLICATED,)) if normed else None
    piece, weight = (block.new_input(it, (at,), 1 if loop > 1 else REPLICATED) for it, at in ((x, REPLICATED), (w, 0)))
    if whole is not None:
        piece = block.mul(piece, block.rsqrt(block.shift(block.mean(block.square(whole), 1), 1e-6)))
    left, right = (weight, piece) if rows == 1 else (piece, weight)
    product = block.matmul(left, block.transpose(right, (1, 0)))
    block.new_output(block.forloop_accum(product) if loop > 1 else product, (0 if rows == 1 else 1,))
    g.customized([*([x] if normed else []), x, w], block)
    return g.graph()


@pytest.mark.parametrize(("rows", "measured"), [(1, OF_ONE_ROW), (8, OF_EIGHT_ROWS)])
def test_norms_in_the_kernel_of_a_product_cost_what_was_measured(
    rows: int, measured: dict[tuple[int, int, int], float]
) -> None:
    predicted = {tile: predict_us(norm_and_product(rows, *tile), H200) for tile in measured}
    assert all(0.7 < predicted[tile] / us < 1.5 for tile, us in measured.items())
    assert measured[min(predicted, key=predicted.__getitem__)] < 1.1 * min(measured.values())


def test_a_norm_of_several_rows_is_better_a_kernel_of_its_own() -> None:
    tile = (64, 5, 128)
    fused, alone = (predict_us(norm_and_product(8, *tile, normed), H200) for normed in (True, False))
    assert alone == pytest.approx(WITHOUT_NORM_US, rel=0.1)
    assert OF_EIGHT_ROWS[tile] - WITHOUT_NORM_US > fused - alone > 5  # a kernel of its own takes 2 to 3 µs


def test_an_operand_that_a_loop_computes_of_one_load_waits_like_a_scaled_one() -> None:
    def predicted(activation: str) -> float:
        g, block = new_kernel_graph(), new_threadblock_graph((108,), forloop_range=9)
        x, w = g.new_input((2, 1152), "float16"), g.new_input((6912, 1152), "float16")
        piece, weight = block.new_input(x, (REPLICATED,), 1), block.new_input(w, (0,), 1)
        piece = block.op(activation, piece) if activation else piece
        block.new_output(block.forloop_accum(block.matmul(piece, block.transpose(weight, (1, 0)))), (1,))
        g.customized([x, w], block)
        return predict_us(g.graph(), H200)

    assert predicted("silu") > predicted("relu") > 1.5 * predicted("")  # 23.8 µs with a silu; cuBLAS takes 5.3


def test_operands_of_many_paths_to_their_loads_are_priced_in_one_pass() -> None:
    g, block = new_kernel_graph(), new_threadblock_graph((1,), forloop_range=4)
    x, w = g.new_input((64, 256), "float16"), g.new_input((256, 64), "float16")
    piece, weight = block.new_input(x, (REPLICATED,), 1), block.new_input(w, (REPLICATED,), 0)
    for _ in range(64):  # 2 ** 64 paths
        piece = block.add(block.relu(piece), piece)
    block.new_output(block.forloop_accum(block.matmul(piece, weight)), (REPLICATED,))
    assert block_work(block.graph()).scaled
