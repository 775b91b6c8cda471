"""Accumulators over many iterations: their additions lose no digits, and infinite sums stay infinite."""

from collections.abc import Callable
from math import inf, isnan, nan

import numpy as np
import pytest

from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph

LOOP, WIDTH = 256, 8
TERMS = LOOP * WIDTH
Summed = Callable[[ThreadblockGraph, Tensor, Tensor], Tensor]

SUMS: dict[str, Summed] = {
    "sum": lambda block, x, y: block.forloop_accum(x, "sum", 1),
    "mean": lambda block, x, y: block.forloop_accum(x, "mean", 1),
    "columns": lambda block, x, y: block.sum(block.forloop_accum(x), 1),
    "product": lambda block, x, y: block.forloop_accum(block.matmul(x, y)),
}


def summed(form: str, dtype: str = "float32", loop: int = LOOP) -> Graph:
    """The sums of two rows, a few of their elements an iteration; `y` is a vector."""
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,), forloop_range=loop)
    tensors = [kernel.new_input((2, TERMS), dtype, "x"), kernel.new_input((TERMS, 1), dtype, "y")]
    x = block.new_input(tensors[0], (REPLICATED,), 1)
    y = block.new_input(tensors[1], (REPLICATED,), 0)
    block.new_output(SUMS[form](block, x, y), (REPLICATED,))
    kernel.customized(tensors, block)
    return kernel.graph()


@pytest.mark.parametrize("form", SUMS)
def test_a_long_sum_keeps_what_its_additions_lose(form: str, run_program: RunProgram) -> None:
    x = np.full((2, TERMS), 2.0**-25, np.float32)
    x[:, :WIDTH], x[1] = 1.0, 1 / 3
    [found] = run_program(emit(summed(form)), [x, np.ones((TERMS, 1), np.float32)])
    wanted = x.astype(np.float64).sum(1) / (TERMS if form == "mean" else 1)
    assert np.abs(found.reshape(2) / wanted - 1).max() < 1.5e-7  # one addition an iteration loses 1e-6


@pytest.mark.parametrize("form", SUMS)
def test_infinite_sums_stay_infinite(form: str, run_program: RunProgram) -> None:
    x = np.ones((2, TERMS), np.float32)
    x[0, 3 * WIDTH], x[1, 5 * WIDTH] = inf, nan
    [found] = run_program(emit(summed(form)), [x, np.ones((TERMS, 1), np.float32)])
    infinite, undefined = found.reshape(2)
    assert infinite == inf and isnan(undefined)


def test_short_sums_and_products_of_half_precision_are_as_they_were() -> None:
    assert "lost_" in emit(summed("sum")) and "lost_" in emit(summed("product"))
    assert "lost_" not in emit(summed("sum", loop=32)) and "lost_" not in emit(summed("product", "float16"))
