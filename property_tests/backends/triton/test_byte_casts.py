"""Casts of bytes to floating-point types by bit operations are exact, with and without a sum behind them."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg import new_kernel_graph, new_threadblock_graph
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import Tensor, ThreadblockGraph

ROWS, TERMS = 16, 16
Body = Callable[[ThreadblockGraph, Tensor], Tensor]
BODIES: dict[str, tuple[Body, Callable[[np.ndarray], np.ndarray]]] = {
    "a cast": (lambda b, x: b.scale(b.cast(x, "float32"), 2), lambda x: 2 * x),
    "a whole offset": (lambda b, x: b.shift(b.cast(x, "float32"), -8), lambda x: x - 8),
    "a large offset": (lambda b, x: b.shift(b.cast(x, "float32"), 1 << 23), lambda x: x + 2.0**23),
    "a fraction": (lambda b, x: b.shift(b.cast(x, "float32"), 0.5), lambda x: x + 0.5),
    "low bits": (lambda b, x: b.shift(b.cast(b.op("low_bits", x, bits=4), "float32"), -8), lambda x: x % 16 - 8),
    "a sum of rows": (lambda b, x: b.sum(b.cast(x, "float32"), 1), lambda x: x.sum(1, keepdims=True)),
}


def _kernel(kind: str, body: Body) -> Graph:
    p = new_kernel_graph()
    x, block = p.new_input((ROWS, TERMS), kind, "X"), new_threadblock_graph((1,))
    block.new_output(body(block, block.new_input(x, (REPLICATED,))), (REPLICATED,))
    p.customized([x], block)
    return p.graph()


def _bytes(kind: str) -> np.ndarray:
    low = -128 if kind == "int8" else 0
    return np.arange(low, low + 256).reshape(ROWS, TERMS)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("name", BODIES)
def test_each_byte_becomes_its_number(run_program: RunProgram, name: str, kind: str) -> None:
    body, wanted = BODIES[name]
    source = emit(_kernel(kind, body))
    assert "bitcast=True) - " in source and "tl.float32)" not in source
    [result] = run_program(source, [_bytes(kind)])
    assert np.array_equal(result, wanted(_bytes(kind).astype(np.float64)))


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("half", [DType.float16, DType.bfloat16])
def test_bytes_multiplied_by_halves_are_exact(run_program: RunProgram, half: DType, kind: str) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((ROWS, ROWS), str(half), "X"), p.new_input((ROWS, TERMS), kind, "W")
    block = new_threadblock_graph((1,))
    left, right = (block.new_input(it, (REPLICATED,)) for it in (x, w))
    product = block.matmul(block.cast(left, "float32"), block.cast(right, "float32"))
    block.new_output(product, (REPLICATED,))
    p.customized([x, w], block)
    source = emit(p.graph())
    assert "bitcast=True) - " in source
    left_numbers = np.eye(ROWS)[::-1] / 4
    [result] = run_program(source, [left_numbers, _bytes(kind)])
    assert np.array_equal(result, left_numbers @ _bytes(kind))
