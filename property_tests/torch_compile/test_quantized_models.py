"""Seven quantized models go through torch.compile whole: no op of theirs is outside a segment, and they are right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the ops of quantized_decomposed
import torch.nn.functional as f
from torch import nn

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Decision, graph_records
from property_tests.support.parameters import AMPLE
from property_tests.support.torch_import import imported

WIDTH, INNER, GROUP = 32, 64, 16
OPTIONS = {"budget": AMPLE, "rest": "eager", "gate": "off", "min_ops": 1}
Unpack = Callable[..., Any]


class Quantized(nn.Module):
    """A linear layer of another kind: `kept` are its buffers, `linear(x, *kept)` its function."""

    def __init__(self, linear: Callable[..., Any], kept: tuple[Any, ...]) -> None:
        super().__init__()
        self.linear, self.names = linear, [f"kept_{place}" for place in range(len(kept))]
        for name, value in zip(self.names, kept, strict=True):
            self.register_buffer(name, value)

    def forward(self, x: Any) -> Any:
        return self.linear(x, *(getattr(self, name) for name in self.names))


class Mlp(nn.Module):
    """The gated MLP of a decoder with quantized layers."""

    def __init__(self, make: Callable[[int, int], Quantized]) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up, self.down = make(WIDTH, INNER), make(WIDTH, INNER), make(INNER, WIDTH)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.down(f.silu(self.gate(h)) * self.up(h))


def _words(*shape: int) -> Any:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def _bytes(*shape: int) -> Any:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def _torchao_int8(terms: int, columns: int) -> Quantized:
    """Weights of int8 alone, with a scale for each column."""
    return Quantized(lambda x, w, s: (x @ w.to(x.dtype).t()) * s, (_bytes(columns, terms), torch.rand(columns) / 500))


def _torchao_int8_dynamic(terms: int, columns: int) -> Quantized:
    def linear(x: Any, w: Any, s: Any) -> Any:
        own = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        narrow = torch.round(x / own).clamp(-128, 127).to(torch.int8)
        return torch._int_mm(narrow, w.t()).to(x.dtype) * own * s

    return Quantized(linear, (_bytes(columns, terms), torch.rand(columns) / 500))


def _torchao_float8(terms: int, columns: int) -> Quantized:
    def linear(x: Any, w: Any, s: Any) -> Any:
        own = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
        narrow = (x / own).clamp(-448, 448).to(torch.float8_e4m3fn)
        return torch._scaled_mm(narrow, w.t(), own, s, out_dtype=torch.float32)

    return Quantized(linear, (torch.randn(columns, terms).to(torch.float8_e4m3fn), torch.rand(1, columns) / 8))


def _gptq(terms: int, columns: int) -> Quantized:
    def linear(x: Any, weight: Any, zeros: Any, scales: Any) -> Any:
        bits = torch.arange(0, 32, 4, dtype=torch.int32)
        z = (((zeros[:, :, None] >> bits) & 15) + 1).reshape(-1, 1, columns)
        w = ((weight[:, None, :] >> bits[None, :, None]) & 15).reshape(-1, GROUP, columns)
        return x @ (scales[:, None] * (w - z)).reshape(terms, columns)

    groups = terms // GROUP
    return Quantized(linear, (_words(terms // 8, columns), _words(groups, columns // 8), torch.rand(groups, columns) / 50))


def _pt2e(terms: int, columns: int) -> Quantized:
    """PyTorch's quantizer: activations by tensor, weights by channel."""
    ops = torch.ops.quantized_decomposed

    def linear(x: Any, w: Any, s: Any, z: Any) -> Any:
        narrow = ops.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
        wide = ops.dequantize_per_tensor(narrow, 0.05, 3, -128, 127, torch.int8)
        return f.linear(wide, ops.dequantize_per_channel(w, s, z, 0, -127, 127, torch.int8))

    return Quantized(linear, (_bytes(columns, terms), torch.rand(columns) / 500, torch.zeros(columns, dtype=torch.int64)))


def _int4(terms: int, columns: int) -> Quantized:
    """Two numbers in a byte, the lower one first, and a scale for each group."""

    def linear(x: Any, w: Any, s: Any) -> Any:
        numbers = torch.stack([w & 15, w >> 4], -1).view(columns, terms // GROUP, GROUP)
        return f.linear(x, ((numbers.to(x.dtype) - 8) * s).flatten(1))

    words = torch.randint(256, (columns, terms // 2), dtype=torch.uint8)
    return Quantized(linear, (words, torch.rand(columns, terms // GROUP, 1) / 50))


def _mxfp4(terms: int, columns: int) -> Quantized:
    """Numbers of four bits from a table, times powers of two, as transformers unpacks those of gpt-oss."""

    def linear(x: Any, packed: Any, exponents: Any, code: Any) -> Any:
        w = x.new_empty(columns * terms // GROUP, GROUP)
        w[:, 0::2], w[:, 1::2] = code[(packed & 15).int()], code[(packed >> 4).int()]
        return f.linear(x, torch.ldexp(w, exponents.to(torch.int32) - 127).view(columns, terms))

    groups = columns * terms // GROUP
    packed = torch.randint(256, (groups, GROUP // 2), dtype=torch.uint8)
    code = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    return Quantized(linear, (packed, torch.randint(119, 124, (groups, 1), dtype=torch.uint8), code))


MODELS = {
    "int4": _int4,
    "mxfp4": _mxfp4,
    "int8": _torchao_int8,
    "int8 dynamic": _torchao_int8_dynamic,
    "float8": _torchao_float8,
    "gptq": _gptq,
    "pt2e": _pt2e,
}


@pytest.mark.parametrize("name", MODELS)
def test_no_op_of_a_quantized_model_is_outside(name: str) -> None:
    torch.manual_seed(0)
    model, x = Mlp(MODELS[name]).eval(), torch.randn(24, WIDTH)
    it = imported(model, x)
    assert it.outside == ()
    torch.testing.assert_close(it.run(x), model(x), atol=1e-2, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_op_of_a_quantized_model_runs_in_our_kernels(name: str) -> None:
    torch.manual_seed(0)
    model = Mlp(MODELS[name]).eval()
    x = torch.randn(24, WIDTH)
    with torch.no_grad():
        wanted = model(x)
        got = torch.compile(model, backend=backend, options=OPTIONS)(x)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    [record] = graph_records()
    assert record.fallback is None and not record.outside
    assert {it.decision for it in record.segments} == {Decision.USED}, record.segments
