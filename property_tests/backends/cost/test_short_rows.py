"""Tiles of short rows: bytes that memory moves besides theirs, and reductions of many of them."""

import pytest

from mirage_eg.backends.cost.block_cost import HALVING, Orders, block_work
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.gathered_lines import gathered_lines
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.cost.short_rows import wasted_share
from mirage_eg.backends.cost.warp_crossings import CROSSED, lanes_of_row
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph


def test_a_row_goes_on_where_the_tile_has_the_dims_behind_whole() -> None:
    tensor = (128, 16, 31, 2)
    column, line = wasted_share((1, 16, 1, 2), tensor, 4, False), wasted_share((1, 1, 31, 2), tensor, 4, False)
    assert column > 7 > 0.1 > line
    assert wasted_share((128, 16, 31, 2), tensor, 4, False) == 0


def test_a_store_wastes_less_than_a_load() -> None:
    assert 0 < wasted_share((1, 4), (8, 64), 4, True) < wasted_share((1, 4), (8, 64), 4, False)
    assert wasted_share((1, 16), (8, 64), 4, True) == 0 < wasted_share((1, 16), (8, 64), 4, False)


def test_stored_rows_that_begin_within_a_sector_cost_parts_of_two() -> None:
    aligned, vectors, odd = (wasted_share((1, 32), (8, columns), 4, True) for columns in (64, 68, 65))
    assert aligned == 0 < vectors < odd


@pytest.mark.parametrize(
    ("images", "plane", "channels", "us"),
    [
        (128, 15876, 128, {(16, 128): 852, (32, 64): 714, (64, 32): 583, (64, 128): 608, (128, 32): 538}),
        (32, 263169, 64, {(16, 64): 2261, (32, 32): 1722, (64, 32): 1422, (128, 32): 1177, (256, 16): 1300}),
    ],
)
def test_images_channels_last_are_stored_row_major_in_the_predicted_time(
    images: int, plane: int, channels: int, us: dict[tuple[int, int], int]
) -> None:
    """In float32 on an H200 (torch 2.11, Triton 3.6), where a copy takes 508 and 1,020 µs."""
    for (positions, columns), measured in us.items():
        g, block = new_kernel_graph(), new_threadblock_graph((images, -(-plane // positions), channels // columns))
        x = g.new_input((images, plane, channels), "float32")
        block.new_output(block.transpose(block.relu(block.new_input(x, (0, 1, 2))), (0, 2, 1)), (0, 2, 1))
        [result] = g.customized([x], block)
        g.mark_output(result)
        [cost] = predict(g.graph(), DEVICES["H200"])
        assert 0.85 < cost.us / measured < 1.1


def test_a_store_into_an_image_channels_last_moves_whole_sectors() -> None:
    g, block = new_kernel_graph(), new_threadblock_graph((32, 5, 4))
    block.new_output(block.relu(block.new_input(g.new_input((2, 32, 10, 4096), "float16"), (1, 2, 3))), (1, 2, 3))
    image, rows = (block_work(block.graph(), orders=Orders((order,))).wasted for order in ((0, 3, 1, 2), ()))
    assert image > 2 * 1024 * 2 * 2 * 14 and rows == block_work(block.graph()).wasted  # two channels are 4 bytes of a sector


def test_a_load_of_one_channel_of_an_image_moves_sectors_of_all() -> None:
    """A mean of two rows of an image, a channel a block: 674 µs on an H200, where the bytes take 74.

    The L2 cache has some of the sectors that neighbours read.
    """
    strides = (802816, 1, 28672, 14336, 256)
    us = {}
    for grid, places in (((32, 256, 7), (0, 1, 2)), ((128, 4, 28), (0, 1, 2))):
        g, block = new_kernel_graph(), new_threadblock_graph(grid)
        x = g.new_input((128, 256, 28, 2, 56), "bfloat16", "x", strides)
        block.new_output(block.mean(block.new_input(x, places), 3), places)
        [result] = g.customized([x], block)
        g.mark_output(result)
        [us[grid]] = (cost.us for cost in predict(g.graph(), DEVICES["H200"]))
    one, many = us.values()
    assert 0.7 < one / 674 < 1.6 and many < 85


def test_rows_of_strided_tensors_end_at_a_gap() -> None:
    shuffled = (512, 2, 58, 784), (90944, 58, 1, 116)  # channels of two halves side by side
    assert wasted_share((1, 2, 58, 16), *shuffled[:1], 2, False, shuffled[1]) < 0.01
    assert wasted_share((1, 1, 58, 16), *shuffled[:1], 2, False, shuffled[1]) > 0.04
    assert wasted_share((1, 2, 1, 16), *shuffled[:1], 2, False, shuffled[1]) > 30
    every_other = (8, 64), (128, 2)
    assert wasted_share((8, 64), *every_other[:1], 4, False, every_other[1]) > 15


def test_elements_of_padded_tiles_move_one_by_one_in_a_reshape() -> None:
    """58 × 2 channels of 64 positions as the 116 terms of a product: 607 µs on an H200 with a gather, 93 loaded at once."""
    us = []
    for is_computed in (True, False):
        g, block = new_kernel_graph(), new_threadblock_graph((2, 512, 13))
        x = g.new_input((512, 2, 58, 784), "bfloat16", "x", (90944, 58, 1, 116))
        w = g.new_input((116, 116), "bfloat16", "w")
        tile = block.new_input(x, (-1, 0, 3))
        terms = block.reshape(block.transpose(block.relu(tile) if is_computed else tile, (0, 2, 1, 3)), (1, 116, 64))
        block.new_output(block.matmul(block.reshape(block.new_input(w, (0, -1, -1)), (1, 58, 116)), terms), (1, 0, 2))
        [result] = g.customized([x, w], block)
        g.mark_output(result)
        us += [cost.us for cost in predict(g.graph(), DEVICES["H200"])]
    assert 0.8 < us[0] / 607 < 1.2 and 0.7 < us[1] / 93 < 1.3


def test_rows_are_reduced_by_shuffles_and_columns_are_not() -> None:
    def operations(dim: int) -> int:
        g, block = new_kernel_graph(), new_threadblock_graph((4,))
        block.new_output(block.reduction(block.new_input(g.new_input((4, 512, 64), "float16"), (0,)), dim), (0,))
        return block_work(block.graph()).arithmetic

    crossed = 64 * 4 * CROSSED  # by four warps, of which each has a part of all columns
    assert operations(2) == operations(1) - crossed + 512 * 3 * HALVING  # a lane has 8 elements of 64


@pytest.mark.parametrize(
    ("rows", "us"),
    [
        (1, {2: 149, 4: 368, 8: 700, 16: 1375}),
        (2, {2: 150, 4: 338, 8: 632, 16: 1244}),
        (4, {2: 148, 4: 332, 8: 615, 16: 1204}),
        (8, {4: 155}),
    ],
)
def test_warps_that_share_a_reduction_take_the_predicted_time(rows: int, us: dict[int, int]) -> None:
    """Mean and variance of the second dim of tiles [rows, 64, 64] in float16 on an H200 (Triton 3.6), by warps."""
    g, block = new_kernel_graph(), new_threadblock_graph((32, 2048 // rows))
    x = g.new_input((32, 2048, 64, 64), "float16")
    tile = block.new_input(x, (0, 1))
    mean = block.mean(tile, 2)
    for result in (mean, block.mean(block.square(tile - mean), 2)):
        block.new_output(result, (0, 1))
    for result in g.customized([x], block):
        g.mark_output(result)
    for warps, measured in us.items():
        [cost] = predict(with_warps(g.graph(), warps), DEVICES["H200"])
        assert 0.7 < cost.us / measured < 1.3


def test_a_kernel_of_many_short_rows_in_each_block_is_dear() -> None:
    """The mean of each row of 49 in all of 42 blocks, and a product: 11.1 µs on an H200, where 1.4 µs suffice for the loads."""
    g, block = new_kernel_graph(), new_threadblock_graph((42,))
    x, w = g.new_input((1, 672, 49), "float16"), g.new_input((168, 672), "float16")
    mean = block.reshape(block.reduction(block.new_input(x, (-1,)), 2), (672, 1))
    block.new_output(block.matmul(block.new_input(w, (0,)), mean), (0,))
    [result] = g.customized([x, w], block)
    g.mark_output(result)
    [cost] = predict(g.graph(), DEVICES["H200"])
    assert cost.us > 5 and cost.limited_by == "arithmetic"


def test_blocks_of_few_short_rows_take_the_predicted_time() -> None:
    """Maxima of rows of 4 in blocks of 64 rows: 154 µs on an H200 (Triton 3.6), where their bytes take 19."""
    g, block = new_kernel_graph(), new_threadblock_graph((128, 16, 61))
    x = g.new_input((128, 64, 961, 4), "float16")
    block.new_output(block.clamp(block.max(block.new_input(x, (0, 1, 2)), 3), 0.0, 1.0), (0, 1, 2))
    [result] = g.customized([x], block)
    g.mark_output(result)
    [cost] = predict(g.graph(), DEVICES["H200"])
    assert 0.9 < cost.us / 154 < 1.1


def test_lanes_share_a_row_by_vectors() -> None:
    assert lanes_of_row((4, 512, 64), 2, 128) == 8 and lanes_of_row((4, 512, 64), 4, 128) == 16
    assert lanes_of_row((4, 4, 16), 2, 128) == 8  # a thread has two elements of the tile
    assert lanes_of_row((1, 64, 49), 2, 128) == 32  # rows of 49 begin at no vector
    assert lanes_of_row((64, 64, 4), 2, 128) == 1 and lanes_of_row((1, 8192), 2, 128) == 32


def test_a_load_of_a_warp_touches_a_line_for_each_row() -> None:
    images = (128, 64, 63, 4, 63, 4)
    assert gathered_lines((1, 4096), (8, 4096), 2, 128) == 0 == gathered_lines((64, 32), (64, 32), 4, 128)
    assert gathered_lines((1, 1, 4, 64), (128, 64, 4, 64), 4, 128) == 0
    one, eight = (gathered_lines((count, 1, 1, 4, 63, 4), images, 2, 128) for count in (1, 8))
    assert 0 < 16 * one < eight  # 4 rows of an image are next to each other
    assert gathered_lines((16, 2, 14, 2), (128, 12, 14, 2), 2, 128) == 14 * 15


@pytest.mark.parametrize(("grid", "us"), [((32, 128, 63), 1301), ((64, 16, 63), 1811)])
def test_loads_of_many_rows_of_four_take_the_predicted_time(grid: tuple[int, ...], us: int) -> None:
    """Maxima of windows of tanh, behind a convolution that is predicted at 767 µs: level2/82 in float16 on an H200."""
    g, block = new_kernel_graph(), new_threadblock_graph(grid)
    x = g.new_input((128, 64, 63, 4, 63, 4), "float16")
    tile = block.tanh(block.new_input(x, (1, 0, 2)))
    first, second = (3, 5) if grid[0] == 32 else (5, 3)
    block.new_output(block.max(block.max(tile, first), second), (1, 0, 2))
    [result] = g.customized([x], block)
    g.mark_output(result)
    [cost] = predict(g.graph(), DEVICES["H200"])
    assert 0.9 < (767 + cost.us) / us < 1.1


def test_what_several_inputs_show_of_one_value_is_read_once() -> None:
    """As the halves of a row, and the row itself for its statistics."""
    p, rows = new_kernel_graph(), 1 << 16
    x = p.new_input((rows, 128), "float16")
    shown = [x, p.slice(x, 1, 0, 64), p.slice(x, 1, 64, 128)]
    block = new_threadblock_graph((rows // 16,))
    row, *halves = (block.new_input(it, (0,)) for it in shown)
    block.new_output(block.mul(block.add(*halves), block.mean(row, 1)), (0,))
    [result] = p.customized(shown, block)
    p.mark_output(result)
    [cost] = predict(p.graph(), DEVICES["H200"])
    assert cost.dram_bytes == 2 * rows * (128 + 64)
