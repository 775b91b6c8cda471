"""Kernels read integers in their own width, and programs return them so: no number is rounded to a narrower float."""

import numpy as np
import pytest
import torch

from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph

WHOLE = np.array([[2**24 + 1], [-(2**24) - 1], [2**31 - 1], [2**62 + 3], [-(2**63)], [0]])


def casts(extent: int, dtype: str) -> Graph:
    """A block that casts a tile of integers to three types; outside of it integers are added."""
    kernel = new_kernel_graph()
    x = kernel.new_input((extent, 1), dtype, "x")
    block = new_threadblock_graph((1,))
    tile = block.new_input(x, (REPLICATED,))
    for kind in ("float32", "float64", "bool"):
        block.new_output(block.op("cast", tile, dtype=kind), (REPLICATED,))
    for result in kernel.customized([x], block):
        kernel.mark_output(result)
    kernel.mark_output(kernel.add(x, x))
    return kernel.graph()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_kernels_cast_integers_of_any_size_as_torch_does(run_program: RunProgram, dtype: str) -> None:
    x = WHOLE.astype(dtype)
    given = torch.tensor(x)
    wanted = [given.float(), given.double(), given.bool(), given + given]
    got = run_program(emit(casts(len(x), dtype)), [x])
    for ours, torchs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(ours, torchs.numpy())


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_a_kernel_takes_bits_of_two_integers_as_torch_does(run_program: RunProgram, dtype: str) -> None:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    x, y = (kernel.new_input((16, 16), dtype, name) for name in "xy")
    tiles = [block.new_input(it, (REPLICATED,)) for it in (x, y)]
    ops = ("bitwise_and", "bitwise_or", "bitwise_xor")
    for op in ops:
        block.new_output(block.op(op, *tiles), (REPLICATED,))
    for result in kernel.customized([x, y], block):
        kernel.mark_output(result)
    limits = np.iinfo(dtype)
    numbers = np.random.default_rng(0).integers(limits.min, limits.max, (2, 16, 16), dtype)
    got = run_program(emit(kernel.graph()), [*numbers])
    for op, ours in zip(ops, got, strict=True):
        np.testing.assert_array_equal(ours, getattr(torch, op)(*map(torch.tensor, numbers)).numpy())


def test_kernels_compute_with_integers_and_constants_in_integers(run_program: RunProgram) -> None:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    x = kernel.new_input((4, 16), "int32", "x")
    tile = block.new_input(x, (REPLICATED,))
    bound = 2**30 + 1
    for result in (
        block.shift(tile, 5),
        block.scale(tile, 3),
        block.relu(tile),
        block.op("clamp", tile, low=-bound, high=bound),
    ):
        block.new_output(result, (REPLICATED,))
    for result in kernel.customized([x], block):
        kernel.mark_output(result)
    number = torch.randint(-(2**31), 2**31 - 1, (4, 16), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    got = run_program(emit(kernel.graph()), [number.numpy()])
    for ours, wanted in zip(got, (number + 5, number * 3, number.relu(), number.clamp(-bound, bound)), strict=True):
        np.testing.assert_array_equal(ours, wanted.numpy())


@pytest.mark.parametrize("descending", [True, False])
def test_of_equal_numbers_the_first_one_is_the_extreme(run_program: RunProgram, descending: bool) -> None:
    graph = new_kernel_graph()
    x = graph.new_input((8, 40), "float32", "x")
    graph.mark_output(graph.op("argsort", x, dim=1, descending=int(descending), count=1))
    number = np.random.default_rng(0).integers(0, 3, (8, 40)).astype(np.float32)
    [got] = run_program(emit(graph.graph()), [number])
    np.testing.assert_array_equal(got[:, 0], number.argmax(1) if descending else number.argmin(1))
