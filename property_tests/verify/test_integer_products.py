"""Products of integers of eight bits are exact in 32, also in kernels that write them as multiplications and sums."""

from typing import Any

import numpy as np
import pytest
import torch

from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import ElementTypeError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.torch_import import imported, relative_error

TERMS = 256


def _program(rows: int, types: tuple[str, str] = ("int8", "int8")) -> Graph:
    g = new_kernel_graph()
    x, w, scale = g.new_input((rows, TERMS), types[0]), g.new_input((16, TERMS), types[1]), g.new_input((1, 16), "float32")
    g.mark_output(g.cast(g.matmul(x, g.transpose(w, (1, 0))), "float32") * scale)
    return g.graph()


@pytest.mark.parametrize("rows", [1, 16])
def test_a_kernel_multiplies_bytes_and_adds_in_32_bits(run_program: RunProgram, rows: int) -> None:
    program = _program(rows)
    first = next(it for it in optimize("int8", program, Options(top=1, device="cpu", cache=False)).candidates if it.fused)
    assert first.compile.ok and ("out_dtype=tl.int32" in first.source) is (rows > 1)
    x, w = (np.full((count, TERMS), -128) for count in (rows, 16))  # 2²² in each element
    x[:, 0] = 1
    scale = np.ones((1, 16))
    [got] = run_program(first.source, [x, w, scale])
    assert np.array_equal(got, x @ w.T)


def test_bytes_of_two_types_are_not_multiplied() -> None:
    with pytest.raises(ElementTypeError):
        _program(4, ("int8", "uint8"))


def test_a_block_graph_does_not_multiply_within_eight_bits() -> None:
    block = new_threadblock_graph((1,))
    kernel = new_kernel_graph()
    x = block.new_input(kernel.new_input((4, 4), "int8"), (REPLICATED,))
    with pytest.raises(ElementTypeError, match="do not wrap"):
        block.op("mul", x, x)


def test_rounding_and_bytes_are_as_in_torch(run_program: RunProgram) -> None:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    x = kernel.new_input((8, 16), "float32", "X")
    tile = block.new_input(x, (REPLICATED,))
    for value in (block.op("round", tile), block.cast(tile, "int8"), block.cast(tile, "uint8")):
        block.new_output(value, (REPLICATED,))
    kernel.customized([x], block)
    halves = (np.arange(128) - 64.0).reshape(8, 16) / 2
    halves[0, :4] = 1e9, -1e9, 8388609.0, -0.5
    rounded, signed, unsigned = run_program(emit(kernel.graph()), [halves])
    assert np.array_equal(rounded, np.rint(halves.astype(np.float32)))
    whole = halves.astype(np.int64)
    assert np.array_equal(signed, whole.astype(np.int8)) and np.array_equal(unsigned, whole.astype(np.uint8))


def _dynamic(x: Any, w: Any, scale: Any) -> Any:
    own = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    narrow = torch.round(x / own).clamp(-128, 127).to(torch.int8)
    return torch._int_mm(narrow, w.t()).to(x.dtype) * own * scale


def test_a_dynamically_quantized_layer_is_inside() -> None:
    generator = torch.Generator().manual_seed(0)
    x, scale = torch.randn(24, 32, generator=generator), torch.rand(16, generator=generator)
    w = torch.randint(-128, 128, (16, 32), generator=generator).to(torch.int8)
    it = imported(_dynamic, x, w, scale)
    assert it.outside == () and DType.int32 in it.segments[0].program.dtypes
    assert relative_error(it.run(x, w, scale), _dynamic(x, w, scale)) <= 1e-6
