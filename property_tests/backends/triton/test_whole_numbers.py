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
