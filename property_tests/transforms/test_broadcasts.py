"""Broadcasts are no kernels of their own: ops are done on what is narrow, and what is wide is a view of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_op
from mirage_eg.testing import TAME, programs
from mirage_eg.transforms.broadcasts import with_late_broadcasts
from mirage_eg.transforms.simplify import simplify
from property_tests.support.hand_written import error_of, inputs_of

WIDE = (48, 32)


@settings(max_examples=100)
@given(program=programs(TAME - {"concat", "slice"}, attempts=9), seed=st.integers(0, 99))
def test_late_broadcasts_compute_the_same(program: Graph, seed: int) -> None:
    arrays = inputs_of(program, seed)
    late = with_late_broadcasts(program)
    assert late.output_types == program.output_types
    for got, want in zip(evaluate(late, arrays, FloatAlgebra()), evaluate(program, arrays, FloatAlgebra()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


Write = Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor]  # of a column, a row, a matrix whose columns are a row
SUMMED: dict[str, Write] = {
    "sum(broadcast(exp x))": lambda p, x, y, w: p.sum(p.broadcast(p.exp(x), WIDE), 1),
    "sum(broadcast(exp y)) over rows": lambda p, x, y, w: p.sum(p.broadcast(p.exp(y), WIDE), 0),
    "mean(broadcast x)": lambda p, x, y, w: p.exp(p.mean(p.broadcast(x, WIDE), 1)),
    "max(broadcast x)": lambda p, x, y, w: p.exp(p.max(p.broadcast(x, WIDE), 1)),
    "matmul(broadcast(exp x), w)": lambda p, x, y, w: p.matmul(p.broadcast(p.exp(x), WIDE), w),
    "matmul(broadcast(exp y), w)": lambda p, x, y, w: p.matmul(p.broadcast(p.exp(y), WIDE), w),
    "matmul of two broadcasts": lambda p, x, y, w: p.matmul(p.broadcast(p.exp(x), WIDE), p.broadcast(p.exp(y), (32, 32))),
    "sum of a product of broadcasts": lambda p, x, y, w: p.sum(p.mul(p.broadcast(x, WIDE), p.broadcast(y, WIDE)), 1),
    "through a transpose": lambda p, x, y, w: p.sum(p.transpose(p.broadcast(p.exp(x), WIDE), (1, 0)), 0),
    "with leading dims": lambda p, x, y, w: p.sum(p.sum(p.broadcast(p.exp(y), (3, *WIDE)), 0), 1),
}


def written(write: Write) -> Graph:
    program = new_kernel_graph()
    x, y, w = program.new_input((48, 1), "float32"), program.new_input((32,), "float32"), program.new_input((32, 16), "float32")
    program.mark_output(write(program, x, y, w))
    return program.graph()


@pytest.mark.parametrize("name", SUMMED)
def test_a_program_that_reduces_a_broadcast_is_all_in_one_kernel(run_program: RunProgram, name: str) -> None:
    program = written(SUMMED[name])
    first = mi.superoptimize(program, top=2)[0]
    kernels = [item.op for item in first.graph.nodes if is_op(item)]
    assert kernels == ["block"]
    assert error_of(run_program, program, first.source) < 1e-5


READ: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "an elementwise op": lambda p, x, y, w: p.exp(p.broadcast(x, WIDE)),
    "a wide operand beside it": lambda p, x, y, w: p.sub(p.broadcast(x, WIDE), p.exp(p.broadcast(y, WIDE))),
    "two broadcasts": lambda p, x, y, w: p.exp(p.broadcast(p.broadcast(y, (1, 32)), WIDE)),
}


@pytest.mark.parametrize("name", READ)
def test_what_reads_a_broadcast_reads_what_is_narrow(name: str) -> None:
    program = written(READ[name])
    assert readers_of_broadcasts(program) - {"output"}
    assert readers_of_broadcasts(simplify(program).after) <= {"output"}


def readers_of_broadcasts(graph: Graph) -> set[str]:
    wide = {values[0] for item, values in graph.numbered() if item.op == "broadcast"}
    return {item.op for item in graph.nodes if wide.intersection(item.operands)}


def test_a_broadcast_that_is_reshaped_stays_where_it_is() -> None:
    program = written(lambda p, x, y, w: p.exp(p.reshape(p.broadcast(x, WIDE), (32, 48))))
    assert [item.op for item in simplify(program).after.nodes][-4:] == ["broadcast", "reshape", "exp", "output"]


def test_a_program_without_broadcasts_is_left_alone() -> None:
    program = written(lambda p, x, y, w: p.add(p.exp(x), y))
    assert with_late_broadcasts(program) is program
