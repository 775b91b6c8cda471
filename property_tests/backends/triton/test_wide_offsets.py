"""Tensors of more than 2³¹ elements: compiled kernels compute every address in 64 bits, each part of it."""

import re
from collections.abc import Callable

import pytest

from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.builder import Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph

Write = Callable[[ThreadblockGraph, Tensor], Tensor]


def one_block(
    shape: tuple[int, ...], grid: tuple[int, ...], write: Write, *, loop: int = 1, strides: tuple[int, ...] | None = None
) -> Graph:
    """A kernel whose grid dims split the first dims of the input, or the last one where rows are few."""
    kernel = new_kernel_graph()
    x = kernel.new_input(shape, "float16", "X", strides=strides)
    block = new_threadblock_graph(grid, forloop_range=loop)
    places = (REPLICATED,) if grid == (1,) else (1,) if shape[0] < grid[0] else tuple(range(len(grid)))
    block.new_output(write(block, block.new_input(x, places, 1 if loop > 1 else REPLICATED)), places)
    kernel.customized([x], block)
    return kernel.graph()


def chosen_rows(shape: tuple[int, int], count: int) -> Graph:
    """A kernel that concatenates rows of a table, twice so many."""
    kernel = new_kernel_graph()
    x = kernel.new_input(shape, "float16", "X")
    indices = [kernel.new_input((count,), "int64", name) for name in "IJ"]
    kernel.mark_output(kernel.concat([kernel.gather(x, it) for it in indices], 0))
    return kernel.graph()


LARGE = {
    "rows far apart in a tile": one_block((4, 1 << 30), (1 << 20,), lambda b, x: b.sub(x, b.max(x, 0))),
    "many rows": one_block((1 << 20, 1 << 12), (1 << 20,), lambda b, x: b.exp(x)),
    "two grid dims": one_block((1 << 11, 1 << 11, 1 << 10), (1 << 11, 1 << 11), lambda b, x: b.exp(x)),
    "a loop": one_block((1 << 12, 1 << 20), (1 << 12,), lambda b, x: b.forloop_accum(b.exp(x), "sum", 1), loop=1 << 10),
    "a view with large strides": one_block((8, 64), (1,), lambda b, x: b.exp(x), strides=(1 << 29, 1)),
    "many chosen rows": chosen_rows((1 << 20, 1 << 12), 1 << 19),
}


def addresses(program: Graph) -> tuple[list[str], list[str]]:
    """The types of all offsets that are added to pointers, and the 32-bit sums and products, of Triton's IR for sm_90."""
    with loaded(emit(program)) as module:
        texts = [compiled.asm["ttir"] for _, compiled in compile_module(module, "sm_90", resources=False)]
    offsets = [
        kind
        for text in texts
        for kind in re.findall(r"tt\.addptr .* : .*, (?:tensor<[\dx]*x)?(i\d+)>?(?: loc.*)?$", text, re.M)
    ]
    narrow = [line for text in texts for line in text.splitlines() if re.search(r"arith\.(muli|addi|shli) .*i32", line)]
    return offsets, narrow


@pytest.mark.parametrize("name", LARGE)
def test_addresses_beyond_31_bits_are_computed_in_64_throughout(name: str) -> None:
    offsets, narrow = addresses(LARGE[name])
    assert offsets and set(offsets) == {"i64"} and narrow == []


def test_addresses_of_small_tensors_are_computed_in_32_bits() -> None:
    offsets, _ = addresses(one_block((64, 1 << 12), (64,), lambda b, x: b.exp(x)))
    assert offsets and set(offsets) == {"i32"}
