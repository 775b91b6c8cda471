"""No read of memory in compiled code is wider than the multiple of bytes at which every row begins, at any parity of sizes."""

import re
from math import gcd

import pytest

from mirage_eg import new_kernel_graph, new_threadblock_graph
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED

pytest.importorskip("torch")
READ = re.compile(r"ld\.global\S*?(?:\.v(\d))?\.b(\d+) |cp\.async\.c[ag]\.shared\.global .*?, (0x[0-9a-f]+|\d+)[,;]")


def row_sums(dtype: str, width: int, start: int) -> Graph:
    """Of the columns from `start` on."""
    p = new_kernel_graph()
    x = p.new_input((16, width), dtype, "X")
    columns = p.slice(x, 1, start, width) if start else x
    block = new_threadblock_graph((4,))
    block.new_output(block.sum(block.cast(block.new_input(columns, (0,)), "float32"), 1), (0,))
    [sums] = p.customized([columns], block)
    p.mark_output(sums)
    return p.graph()


def product(dtype: str, width: int, start: int) -> Graph:
    """Of columns of two matrices, tile by tile in a pipelined loop."""
    p = new_kernel_graph()
    x, w = (p.new_input((64, width), dtype, name) for name in "XW")
    left, right = p.slice(x, 1, start, start + 64), p.slice(w, 1, start, start + 128)
    block = new_threadblock_graph((2,), forloop_range=4)
    tile = block.matmul(block.new_input(left, (REPLICATED,), 1), block.new_input(right, (1,), 0))
    block.new_output(block.forloop_accum(tile), (1,))
    [z] = p.customized([left, right], block)
    p.mark_output(z)
    return p.graph()


def widest(graph: Graph) -> int:
    """The bytes of the widest read of global memory in the kernel for sm_90, of a load or a copy into shared memory."""
    with loaded(emit(graph)) as module:
        [(record, kernel)] = compile_module(module, "sm_90", resources=False)
        assert record.ok, record.error
        reads = READ.findall(kernel.asm["ptx"])
    return max(int(copied, 0) if copied else int(vector or 1) * int(bits) // 8 for vector, bits, copied in reads)


@pytest.mark.parametrize(("width", "start"), [(197, 0), (198, 2), (200, 1), (208, 16)])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
def test_no_load_is_wider_than_its_rows_are_aligned(dtype: str, width: int, start: int) -> None:
    size = DType(dtype).itemsize
    assert 1 <= widest(row_sums(dtype, width, start)) <= gcd(16, width * size, start * size)


@pytest.mark.parametrize(("width", "start"), [(197, 0), (198, 2), (208, 16)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_copy_into_shared_memory_is_wider(dtype: str, width: int, start: int) -> None:
    size = DType(dtype).itemsize
    assert 1 <= widest(product(dtype, width, start)) <= gcd(16, width * size, start * size)
