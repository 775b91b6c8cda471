"""Thread blocks are launched in the order of memory, unless a large tensor would be read from memory several times."""

import re

import pytest

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.grid_order import grid_order
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.threadblock_graph import new_threadblock_graph


def launched(rows: int, columns: int, tile: int = 2) -> tuple[int, ...]:
    """The grid of x + w as it is launched: x has rows for each of 64 channels, in tiles of so many rows and 2048 columns."""
    graph, block = new_kernel_graph(), new_threadblock_graph((rows // tile, 64, columns // 2048))
    x, w = graph.new_input((rows, 64, columns), "float32", "x"), graph.new_input((64, columns), "float32", "w")
    tiles = block.new_input(x, (0, 1, 2)), block.new_input(w, (-1, 0, 1))
    block.new_output(block.add(*tiles), (0, 1, 2))
    graph.mark_output(graph.customized([x, w], block)[0])
    [grid] = re.findall(r"kernel\[\((.*)\)\]", emit(graph.graph()))
    return tuple(map(int, grid.split(", ")))


@pytest.mark.parametrize("rows", [4, 16, 64])
def test_rows_that_share_a_large_tensor_follow_each_other(rows: int) -> None:
    assert launched(rows, 65536) == (rows // 2, 32, 64)


def test_what_the_cache_loses_counts_the_bytes_of_all_tensors() -> None:
    assert launched(16, 65536, tile=1) == (16, 32, 64)  # 16 MiB of x, and as many of w and of the result


def test_what_a_cache_holds_is_read_in_the_order_of_memory() -> None:
    assert launched(16, 4096) == (2, 64, 8)


def launched_product(rows: int, inner: int, columns: int) -> tuple[int, ...]:
    """The grid of x · w as it is launched, in tiles of 128 × 256."""
    graph, block = new_kernel_graph(), new_threadblock_graph((rows // 128, columns // 256), forloop_range=inner // 64)
    x, w = graph.new_input((rows, inner), "bfloat16", "x"), graph.new_input((inner, columns), "bfloat16", "w")
    tiles = block.new_input(x, (0, -1), 1), block.new_input(w, (-1, 1), 0)
    block.new_output(block.forloop_accum(block.matmul(*tiles)), (0, 1))
    graph.mark_output(graph.customized([x, w], block)[0])
    [grid] = re.findall(r"kernel\[\((.*)\)\]", emit(graph.graph()))
    return tuple(map(int, grid.split(", ")))


def test_products_read_rows_once_that_no_cache_holds() -> None:
    assert launched_product(16384, 3072, 768) == (3, 128, 1)  # 100 MB of rows, 5 of columns
    assert launched_product(16384, 768, 3072) == (128, 12, 1)  # 25 MB of rows stay in the cache
    assert launched_product(1024, 8192, 8192) == (8, 32, 1)


@pytest.mark.parametrize(("columns", "order"), [(256, (1, 0)), (65536, (0, 1))])
def test_dims_of_uneven_loops_are_late_if_no_more_bytes_are_read(columns: int, order: tuple[int, ...]) -> None:
    graph, block = new_kernel_graph(), new_threadblock_graph((8, columns // 256), forloop_range=16)
    x, w = graph.new_input((1024, 1024), "bfloat16", "x"), graph.new_input((1024, columns), "bfloat16", "w")
    tiles = block.new_input(x, (0, -1), 1), block.new_input(w, (-1, 1), 0)
    block.new_output(block.forloop_accum(block.matmul(*tiles)), (0, 1))
    graph.customized([x, w], block)
    inputs = [
        Pointer(name, name, kind.shape, kind.dtype, row_major(kind.shape))
        for name, kind in zip("xw", graph.graph().input_types, strict=True)
    ]
    [own] = graph.graph().blocks
    assert grid_order(own, inputs, ()) == (0, 1) and grid_order(own, inputs, (), (0,)) == order
