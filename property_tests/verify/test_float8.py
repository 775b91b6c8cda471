"""Numbers of float8: a rounding to them is an op, exact to the bit, and no other rounding is equal."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch.nn.functional import ScalingType, scaled_mm

from mirage_eg.backends.evaluator import mpmath_ops
from mirage_eg.backends.evaluator.floating_point import ELEMENTWISE
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import ElementTypeError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.support.parameters import few, paired
from property_tests.support.torch_import import imported, relative_error

FLOAT8 = [str(dtype) for dtype in DType if dtype.is_float8]


def _numbers(name: str) -> Any:
    """All numbers of a type, the midpoints between them and their neighbours, and numbers of any size, in float32."""
    every = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float().numpy()
    finite = np.sort(every[np.isfinite(every)])
    middle = (finite[1:] + finite[:-1]) / 2
    generator = np.random.default_rng(0)
    random = generator.standard_normal(1000) * np.exp2(generator.integers(-22, 18, 1000))
    around = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))
    with np.errstate(invalid="ignore"):
        return np.r_[every, middle, *around, random, 1e30].astype(np.float32)


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_is_rounded_to_as_torch_does_to_the_bit(name: str) -> None:
    x = _numbers(name)
    wanted = torch.from_numpy(x).to(getattr(torch, name)).float().numpy()
    with np.errstate(all="ignore"):
        assert np.array_equal(ELEMENTWISE[f"to_{name}"](np, x), wanted, equal_nan=True)
        assert np.array_equal(ELEMENTWISE[f"to_{name}"](np, x.astype(np.float64)), wanted, equal_nan=True)
    exact = [float(mpmath_ops.ELEMENTWISE[f"to_{name}"](mpmath.mpf(float(it)))) for it in x]
    assert np.array_equal(exact, wanted, equal_nan=True)


def _stored(numbers: Any, name: str) -> Any:
    """The nearest numbers of a type, in float64."""
    return torch.from_numpy(numbers).to(getattr(torch, name)).double().numpy()


@pytest.mark.parametrize("name", FLOAT8)
def test_kernels_load_round_and_store_float8(run_program: RunProgram, name: str) -> None:
    kernel = new_kernel_graph()
    x, w = kernel.new_input((16, 32), "float32", "X"), kernel.new_input((32, 16), name, "W")
    block = new_threadblock_graph((1,))
    left, right = (block.new_input(it, (REPLICATED,)) for it in (x, w))
    narrow = block.cast(left, name)
    block.new_output(narrow, (REPLICATED,))
    block.new_output(block.matmul(block.cast(narrow, "float32"), block.cast(right, "float32")), (REPLICATED,))
    kernel.customized([x, w], block)
    source = emit(kernel.graph())
    [load] = [line for line in source.splitlines() if "tl.load(W_ptr" in line]
    assert ".to(" not in load and from_json(to_json(kernel.graph())) == kernel.graph()
    numbers = _numbers(name)[-512:].reshape(16, 32)
    stored = _stored(np.random.default_rng(0).integers(-8, 9, (32, 16)) / 8, name)
    rounded, product = run_program(source, [numbers, stored])
    wanted = _stored(numbers, name)
    assert np.array_equal(rounded, wanted, equal_nan=True)
    with np.errstate(all="ignore"):
        assert np.allclose(product[:-1], (wanted @ stored)[:-1], rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", FLOAT8)
def test_the_padding_of_a_tile_of_float8_adds_nothing(run_program: RunProgram, name: str) -> None:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    scales = kernel.new_input((4, 12), name, "S")
    wide = block.cast(block.new_input(scales, (REPLICATED,)), "float32")
    block.new_output(block.sum(block.shift(block.scale(wide, -1), 1), 1), (REPLICATED,))
    kernel.customized([scales], block)
    stored = _stored(np.exp2(np.arange(48.0) % 7 - 3).reshape(4, 12), name)
    [result] = run_program(emit(kernel.graph()), [stored])
    assert np.allclose(result, (1 - stored).sum(1, keepdims=True))


Program = Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor]


def _scaled(rounding: Callable[[KernelGraph, Tensor, Tensor], Tensor], inside: bool = False, twice: bool = False) -> Program:
    """The product of a rounded x with float8 numbers: times the scale after it, or inside."""

    def write(g: KernelGraph, x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        left, right = g.cast(rounding(g, x, s), "float32"), g.cast(w, "float32")
        left = g.cast(g.cast(left, "float8_e4m3fn"), "float32") if twice else left
        return g.matmul(left * s, right) if inside else g.matmul(left, right) * s

    return write


def _program(write: Program) -> Graph:
    g = new_kernel_graph()
    x, w, s = g.new_input((4, 8), "float32"), g.new_input((8, 6), "float8_e4m3fn"), g.new_input((1, 1), "float32")
    g.mark_output(write(g, x, w, s))
    return expand(g.graph())


RIGHT = _scaled(lambda g, x, s: g.cast(x / s, "float8_e4m3fn"))
EQUAL: dict[str, Program] = {
    "the scale inside": _scaled(lambda g, x, s: g.cast(x / s, "float8_e4m3fn"), inside=True),
    "a second rounding": _scaled(lambda g, x, s: g.cast(x / s, "float8_e4m3fn"), twice=True),
}
NOT_EQUAL: dict[str, Program] = {
    "no rounding": _scaled(lambda g, x, s: x / s),
    "a rounding before the scale": _scaled(lambda g, x, s: g.cast(g.cast(x, "float8_e4m3fn"), "float32") / s),
    "a rounding to the other type": _scaled(lambda g, x, s: g.cast(x / s, "float8_e5m2")),
    "no scale": lambda g, x, w, s: g.matmul(g.cast(g.cast(x / s, "float8_e4m3fn"), "float32"), g.cast(w, "float32")),
}


@pytest.mark.parametrize("name", [*EQUAL, *NOT_EQUAL])
def test_a_rounding_to_float8_is_a_part_of_the_program(name: str) -> None:
    program, other = _program(RIGHT), _program((EQUAL | NOT_EQUAL)[name])
    wanted = Equality.EQUAL if name in EQUAL else Equality.NOT_EQUAL
    assert Reference(program).check(other).verdict is wanted
    assert float_check(program, other).ok or name in NOT_EQUAL


def _largest(name: str, rounded_first: bool) -> Graph:
    g = new_kernel_graph()
    x = g.new_input((8, 16), "float32")
    rounded = g.cast(g.cast(x, name), "float32")
    g.mark_output(g.max(rounded, 1) if rounded_first else g.cast(g.cast(g.max(x, 1), name), "float32"))
    return expand(g.graph())


@pytest.mark.parametrize("name", FLOAT8)
def test_the_largest_number_may_be_rounded_first_where_signs_are_kept(name: str) -> None:
    wanted = Equality.NOT_EQUAL if name == "float8_e8m0fnu" else Equality.EQUAL
    assert Reference(_largest(name, True)).check(_largest(name, False)).verdict is wanted


def test_arithmetic_of_float8_is_refused() -> None:
    g = new_kernel_graph()
    x = g.new_input((2, 2), "float8_e5m2")
    for op in (lambda: x + x, lambda: g.matmul(x, x), lambda: g.op("sum", x, dim=0)):
        with pytest.raises(ElementTypeError, match="cast those of float8"):
            op()


def _quantized(x: Any, rows: bool) -> tuple[Any, Any]:
    largest = x.abs().amax(-1, keepdim=True) if rows else x.abs().max()
    scale = largest.clamp(min=1e-12).float() / 448
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("rows", few([True, False], 1))
def test_a_scaled_product_of_float8_is_inside(rows: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((16, 32), (16, 32), (16,)))
    w, scale = _quantized(weight, rows)

    def linear(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        x8, own = _quantized(x, rows)
        return torch._scaled_mm(x8, w.t(), own, scale.t() if rows else scale, bias.bfloat16(), out_dtype=torch.bfloat16)

    it = imported(linear, x, w, scale, bias)
    assert it.outside == ()
    assert relative_error(it.run(x, w, scale, bias), linear(x, w, scale, bias).double()) <= 2**-7


M, K, COLUMNS = 256, 256, 128


def _blocks(rows: int, columns: int, side: int, part: int) -> tuple[Any, Any]:
    """Scales of blocks of a matrix, and the scale of each element."""
    scale = torch.rand(-(-rows // side), -(-columns // part), generator=torch.Generator().manual_seed(rows + side)) + 0.5
    return scale, scale.repeat_interleave(side, 0)[:rows].repeat_interleave(part, 1)[:, :columns]


def _columns_first(scale: Any, rows: int) -> Any:
    """A matrix with elements of a column side by side, and further rows, as torch wants scales."""
    longer = torch.zeros(scale.shape[1], rows).t()
    longer[: scale.shape[0]] = scale
    return longer


SIDES = {"parts": ((1, 128), (1, 128)), "blocks of the weight": ((1, 128), (128, 128)), "blocks of x": ((128, 128), (1, 128))}


@pytest.mark.parametrize(("version", "sides"), paired([1, 2], SIDES))
def test_scales_of_blocks_are_those_of_their_elements(version: int, sides: str) -> None:
    x, w = (
        torch.randn(rows, K, generator=torch.Generator().manual_seed(rows)).to(torch.float8_e4m3fn) for rows in (M, COLUMNS)
    )
    (own, of_x), (other, of_w) = (_blocks(len(it), K, *side) for it, side in zip((x, w), SIDES[sides], strict=True))
    if version == 1:
        arguments = (x, w, own, other.t())

        def linear(x: Any, w: Any, own: Any, other: Any) -> Any:
            return torch._scaled_mm(x, w.t(), own, other, out_dtype=torch.bfloat16)

    else:
        kinds = [ScalingType.BlockWise1x128 if side == 1 else ScalingType.BlockWise128x128 for side, _ in SIDES[sides]]
        arguments = (
            x,
            w,
            *(
                _columns_first(scale, len(scale)) if kind is ScalingType.BlockWise1x128 else _columns_first(scale.t(), 4)
                for scale, kind in zip((own, other), kinds, strict=True)
            ),
        )

        def linear(x: Any, w: Any, own: Any, other: Any) -> Any:
            return scaled_mm(x, w.t(), own, kinds[0], other, kinds[1], output_dtype=torch.bfloat16)

    it = imported(linear, *arguments)
    assert it.outside == ()
    wanted = (x.double() * of_x) @ (w.double() * of_w).t()
    assert relative_error(it.run(*arguments), wanted) <= 2**-7


Change = Callable[[Any], Any]


def _flipped(*dims: int) -> Change:
    """Twice along the rows, and along these dims."""
    return lambda scale: reduce(torch.Tensor.flip, dims, scale.flip(0).flip(0))


OF_OTHER_BLOCKS: dict[str, tuple[Change, Change]] = {
    "the other group of x": (_flipped(1), _flipped()),
    "the other group of the weight": (_flipped(), _flipped(0)),
    "another column": (_flipped(), _flipped(1)),
    "the other group of both": (_flipped(1), _flipped(0)),
}


@pytest.mark.parametrize("name", ["the same", *OF_OTHER_BLOCKS])
def test_scales_of_other_blocks_are_not_equal(name: str) -> None:
    arguments = (torch.zeros(16, K).to(torch.float8_e4m3fn), torch.zeros(16, K).to(torch.float8_e4m3fn))

    def of(change: Change, another: Change) -> Graph:
        def linear(x: Any, w: Any, own: Any, other: Any) -> Any:
            return torch._scaled_mm(x, w.t(), change(own), another(other), out_dtype=torch.bfloat16)

        [program] = imported(linear, *arguments, torch.ones(16, 2), torch.ones(2, 16)).programs
        return program

    verdict = Reference(of(_flipped(), _flipped())).check(of(*OF_OTHER_BLOCKS.get(name, (_flipped(), _flipped())))).verdict
    assert verdict is (Equality.NOT_EQUAL if name in OF_OTHER_BLOCKS else Equality.EQUAL)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_product_with_bytes_has_the_numbers_of_torch(dtype: Any) -> None:
    x, w = torch.randn(16, 256).to(dtype) * 20, torch.randint(-127, 128, (32, 256), dtype=torch.int8)
    scales = (torch.rand(32) / 100).to(dtype)
    it = imported(torch._weight_int8pack_mm, x, w, scales)
    assert it.outside == ()
    wanted = x.double() @ w.double().t() * scales.double()
    error = relative_error(torch._weight_int8pack_mm(x, w, scales), wanted)
    assert relative_error(it.run(x, w, scales), wanted) <= error + 1e-7


@pytest.mark.parametrize("name", ["TensorWise", "RowWise"])
def test_scales_that_a_call_names_are_those_of_torch(name: str) -> None:
    kind = getattr(ScalingType, name)
    x, w = (torch.randn(rows, 32).to(torch.float8_e4m3fn) for rows in (16, 48))
    own, other = (torch.rand(1), torch.rand(1)) if name == "TensorWise" else (torch.rand(16, 1), torch.rand(1, 48))

    def linear(x: Any, w: Any, own: Any, other: Any) -> Any:
        return scaled_mm(x, w.t(), own, kind, other, kind, output_dtype=torch.float32)

    it = imported(linear, x, w, own, other)
    assert it.outside == ()
    torch.testing.assert_close(it.run(x, w, own, other), linear(x, w, own, other))
