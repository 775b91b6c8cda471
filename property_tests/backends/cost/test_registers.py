"""Registers of products: a tile that they cannot hold costs its spills, and no search takes it first."""

from itertools import pairwise

import pytest

from mirage_eg.backends.cost.block_cost import block_work
from mirage_eg.backends.cost.compiled_spills import spill_us
from mirage_eg.backends.cost.devices import find_device
from mirage_eg.backends.cost.liveness import element_bytes
from mirage_eg.backends.cost.registers import MOST_THREADS, register_bytes, threads_for
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.triton.compile import compile_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.search.instantiate.limits import TileLimits, fits

H200 = find_device("h200")
EXTENT = 4096
# Tiles of m, n and k, threads, bytes that a thread spills by ptxas (sm_90, Triton 3.9), and µs of the product on an H200.
COMPILED = (
    ("float32", (128, 128, 16), 256, 0, None),
    ("float32", (128, 128, 32), 256, 0, 2_074),
    ("float32", (128, 64, 32), 128, 0, None),
    ("float32", (128, 256, 16), 256, 200, None),
    ("float32", (256, 128, 32), 256, 496, None),
    ("float32", (128, 128, 32), 128, 496, 2_557),
    ("float32", (256, 128, 16), 128, 2_776, 21_583),
    ("float32", (128, 256, 16), 128, 4_400, 31_131),
    ("float16", (128, 128, 64), 128, 0, None),
    ("float16", (128, 256, 64), 256, 0, None),
    ("float16", (128, 256, 64), 128, 1_024, None),
)


def product(dtype: str, tile: tuple[int, int, int], threads: int, extent: int = EXTENT) -> Graph:
    """A square product in these tiles."""
    m, n, k = tile
    kernel = new_kernel_graph()
    x, y = (kernel.new_input((extent, extent), dtype, name) for name in "XY")
    block = new_threadblock_graph((extent // m, extent // n), (threads,), extent // k)
    left, right = block.new_input(x, (0, REPLICATED), 1), block.new_input(y, (REPLICATED, 1), 0)
    block.new_output(block.forloop_accum(block.matmul(left, right)), (0, 1))
    kernel.customized([x, y], block)
    return kernel.graph()


@pytest.mark.parametrize(("dtype", "tile", "threads", "spills", "us"), COMPILED)
def test_spills_are_predicted_where_the_compiler_makes_them(
    dtype: str, tile: tuple[int, int, int], threads: int, spills: int, us: float | None
) -> None:
    [block] = product(dtype, tile, threads).blocks
    predicted = block_work(block).spilled / threads
    assert (predicted > 0) == (spills > 0)
    if dtype == "float32":  # where a result takes all registers of a thread, ptxas spills more than is too much
        assert spills <= 3.2 * predicted and predicted <= 1.5 * spills


# Both operands as rows of k numbers: k, tile, threads, bytes that a thread spills by ptxas (sm_90, Triton 3.9).
ROWS = (
    (4_031, (128, 128, 112), 128, 568),
    (4_032, (128, 128, 112), 128, 0),
    (2_303, (128, 128, 64), 128, 864),
    (2_303, (128, 128, 64), 256, 0),
    (4_607, (128, 128, 128), 256, 0),
)


@pytest.mark.parametrize(("k", "tile", "threads", "spills"), ROWS)
def test_elements_of_odd_rows_take_registers(k: int, tile: tuple[int, int, int], threads: int, spills: int) -> None:
    m, n, step = tile
    kernel = new_kernel_graph()
    x, y = kernel.new_input((1024, k), "float16", "X"), kernel.new_input((512, k), "float16", "Y")
    block = new_threadblock_graph((1024 // m, 512 // n), (threads,), -(-k // step))
    left, right = block.new_input(x, (0, REPLICATED), 1), block.new_input(y, (REPLICATED, 0), 1)
    block.new_output(block.forloop_accum(block.matmul(left, block.transpose(right, (1, 0)))), (0, 1))
    kernel.customized([x, y], block)
    [made] = kernel.graph().blocks
    assert (block_work(made).spilled > 0) == (spills > 0)


def test_products_that_spill_are_predicted_in_the_measured_order() -> None:
    rows = sorted((us, predict_us(product(dtype, tile, threads), H200)) for dtype, tile, threads, _, us in COMPILED if us)
    assert all(one[1] < other[1] * 1.01 for one, other in pairwise(rows))
    (fastest, *_), *_, (slowest, *_) = rows
    assert [us for _, us in rows[:2]] == pytest.approx([us for us, _ in rows[:2]], rel=0.1)
    assert all(us > 10_000 for measured, us in rows[2:]) and slowest > 10 * fastest


def test_spills_of_the_compiler_are_priced_beyond_those_predicted() -> None:
    fitting, spilling = product("float32", (128, 128, 32), 256), product("float32", (128, 256, 16), 128)
    [work] = (block_work(block) for block in spilling.blocks)
    assert spill_us(fitting, [0], H200) == spill_us(fitting, [None], H200) == spill_us(fitting, [], H200) == 0
    assert spill_us(spilling, [work.spilled // 128], H200) == 0
    assert spill_us(spilling, [4_400], H200) > 10_000 < spill_us(fitting, [4_400], H200)


@pytest.mark.parametrize("threads", [32, 128, 256, 512])
@pytest.mark.parametrize("held", [1, 60_000, 120_000, 240_000, 1 << 20])
def test_threads_are_as_few_as_hold_the_registers(held: int, threads: int) -> None:
    got = threads_for(held, threads)
    assert got >= threads and (held <= register_bytes(got) or got >= MOST_THREADS)
    assert got == threads or held > register_bytes(got // 2)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tile", "threads", "spills", "us"), COMPILED[1:6])
def test_the_compiler_spills_as_measured(
    dtype: str, tile: tuple[int, int, int], threads: int, spills: int, us: float | None
) -> None:
    pytest.importorskip("triton")
    [record] = compile_source(emit(product(dtype, tile, threads, 1024)), "sm_90")
    assert record.spills is not None and (record.spills > 0) == (spills > 0)


def test_what_spills_behind_a_loop_of_products_costs_once() -> None:
    graph, deep = product("float16", (128, 128, 64), 256), product("float16", (128, 128, 16), 256)
    assert 0 < spill_us(graph, [56], H200) < 5
    assert spill_us(deep, [56], H200) == pytest.approx(spill_us(graph, [56], H200), rel=0.5)  # not four times as much


def test_a_mask_takes_a_byte_an_element_and_compiles_without_spills() -> None:
    """Causal attention in tiles of 128 rows and 64 keys."""
    kernel = new_kernel_graph()
    x, y = (kernel.new_input((8, 1024, 64), "bfloat16", name) for name in "XY")
    mask = kernel.new_input((1024, 1024), "bool", "mask", weight=True)
    block = new_threadblock_graph((8, 8), forloop_range=16)
    rows, keys, values = block.new_input(x, (0, 1)), *(block.new_input(y, (0, REPLICATED), 1) for _ in range(2))
    scores = block.matmul(rows, block.transpose(keys, (0, 2, 1)))
    counted = block.where(block.new_input(mask, (REPLICATED, 0), 1), block.exp(scores), 0)
    sums = block.forloop_accum(block.matmul(counted, values)), block.forloop_accum(counted, "sum", 2)
    block.new_output(block.div(*sums), (0, 1))
    kernel.customized([x, y, y, mask], block)
    graph = kernel.graph()
    [own] = graph.blocks
    sizes = zip(element_bytes(own), own.types, strict=True)
    assert [size for size, kind in sizes if kind.dtype is DType.bool] == [1] and fits(own, TileLimits())
    [record] = compile_source(emit(graph), "sm_90")
    assert record.ok and not record.spills
