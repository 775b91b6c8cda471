"""Products of halves that were cast to float32 run as products of halves; products of float32 numbers keep their digits."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.tensor import Tensor
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph

Body = Callable[[ThreadblockGraph, Tensor, Tensor], Tensor]


def _program(body: Body, dtypes: tuple[str, str], extent: int = 64) -> Graph:
    """One block on two whole square inputs."""
    kernel = new_kernel_graph()
    inputs = [kernel.new_input((extent, extent), dtype, name) for dtype, name in zip(dtypes, "XY", strict=True)]
    block = new_threadblock_graph((1,))
    block.new_output(body(block, *(block.new_input(x, (REPLICATED,)) for x in inputs)), (REPLICATED,))
    kernel.customized(inputs, block)
    return kernel.graph()


def _wide(b: ThreadblockGraph, x: Tensor) -> Tensor:
    return b.cast(x, "float32")


def _moved(b: ThreadblockGraph, x: Tensor, y: Tensor) -> Tensor:
    return b.matmul(_wide(b, x), b.transpose(_wide(b, y), (1, 0)))


def _read_twice(b: ThreadblockGraph, x: Tensor, y: Tensor) -> Tensor:
    wide = _wide(b, x)
    return b.add(b.matmul(wide, _wide(b, y)), b.exp(wide))


def _computed(b: ThreadblockGraph, x: Tensor, y: Tensor) -> Tensor:
    return b.matmul(b.exp(_wide(b, x)), _wide(b, y))


def _mixed(b: ThreadblockGraph, x: Tensor, y: Tensor) -> Tensor:
    return b.matmul(_wide(b, x), y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("body", "halves"), [(_moved, True), (_read_twice, True), (_computed, False)], ids=["moved", "read twice", "computed"]
)
def test_halves_are_multiplied_as_halves_and_added_in_float32(
    run_program: RunProgram, body: Body, halves: bool, dtype: str
) -> None:
    source = emit(_program(body, (dtype, dtype)))
    [dot] = re.findall(r"tl\.dot\(.*\)", source)
    assert ("input_precision" not in dot) is halves
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 9, (64, 64)) / 8 for _ in range(2))  # numbers of both halves; sums of products need float32
    [got] = run_program(source, [x, y])
    [wanted] = {_moved: [x @ y.T], _read_twice: [x @ y + np.exp(x)], _computed: [np.exp(x) @ y]}[body]
    assert np.allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_operands_of_different_types_are_multiplied_in_float32() -> None:
    assert "input_precision" in emit(_program(_mixed, ("float16", "float32")))


def test_the_cost_model_knows_the_type_of_a_product() -> None:
    def us(body: Body, dtype: str) -> float:
        return predict_us(_program(body, (dtype, dtype), 512), find_device("h100"))

    def plain(b: ThreadblockGraph, x: Tensor, y: Tensor) -> Tensor:
        return b.matmul(x, b.transpose(y, (1, 0)))

    assert us(_moved, "float16") < 1.5 * us(plain, "float16") < us(plain, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("special", [1.0, float("inf"), float("-inf"), float("nan"), 3e38, 1e-30])
def test_products_in_float32_are_as_exact_as_torch(special: float) -> None:
    import torch

    source = emit(_program(lambda b, x, y: b.matmul(x, y), ("float32", "float32")))
    x, y = (torch.rand(64, 64, device="cuda") + 0.5 for _ in range(2))
    x[3, 5] = special
    with loaded(source) as module:
        got: Any = module.run(x, y)
    wanted, exact = x @ y, x.double() @ y.double()
    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    errors = [((it.double() - exact)[finite].abs() / exact[finite].abs()).max().item() for it in (got, wanted)]
    assert errors[0] <= 2 * errors[1] + 1e-7
