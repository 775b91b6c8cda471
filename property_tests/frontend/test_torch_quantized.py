"""Weights as GPTQ, AWQ, torchao, bitsandbytes and PyTorch's quantizer keep them are read inside, and as torch reads them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the ops of quantized_decomposed
import torch.nn.functional as f

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.integer_ranges import wrapped_values
from mirage_eg.search.partition.segments import barriers
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.support.torch_import import imported, relative_error

N, K, GROUP = 16, 64, 32
GENERATOR = torch.Generator().manual_seed(0)
DECOMPOSED = torch.ops.quantized_decomposed


def _numbers(*shape: int) -> Any:
    return torch.randn(shape, generator=GENERATOR)


def _whole(low: int, high: int, shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.randint(low, high, shape, generator=GENERATOR).to(dtype)


def _words(*shape: int) -> Any:
    return _whole(-(2**31), 2**31, shape, torch.int32)


X = _numbers(3, K)
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
BYTES = _whole(-128, 128, (N, K), torch.int8)
SCALES = _numbers(K // GROUP, N).abs()
GPTQ = (X, _words(K // 8, N), _words(K // GROUP, N // 8), SCALES)


def gptq(x: Any, weight: Any, zeros: Any, scales: Any) -> Any:
    """Words of eight numbers along the terms; zero points in words along the columns."""
    bits = torch.arange(0, 32, 4, dtype=torch.int32)
    z = torch.bitwise_and(torch.bitwise_right_shift(zeros.unsqueeze(2), bits[None, None]).to(torch.int8), 15)
    w = torch.bitwise_and(torch.bitwise_right_shift(weight.unsqueeze(1), bits[None, :, None]).to(torch.int8), 15)
    difference = w.reshape(-1, GROUP, N) - z.reshape(-1, 1, N)
    return x @ (scales.reshape(-1, 1, N) * difference).reshape(K, N)


def gptq_by_index(x: Any, weight: Any, zeros: Any, scales: Any) -> Any:
    """The group of each term by an index."""
    bits, groups = torch.arange(0, 32, 4, dtype=torch.int32), torch.arange(K) // GROUP
    w = ((weight[:, None, :].expand(-1, 8, -1) >> bits[None, :, None]) & 15).reshape(K, N)
    z = ((zeros[:, :, None].expand(-1, -1, 8) >> bits[None, None, :]) & 15).reshape(-1, N)
    return x @ (scales[groups] * (w - z[groups]).to(scales.dtype))


def gptq_of_bytes(x: Any, weight: Any, scales: Any) -> Any:
    """Words of four numbers, which GPTQ unpacks in sixteen bits; the group of each term by an index."""
    bits = torch.arange(0, 32, 8, dtype=torch.int32)
    w = torch.bitwise_and(torch.bitwise_right_shift(weight[:, None, :], bits[None, :, None]).to(torch.int16), 255)
    return x @ (scales[torch.arange(K).flip(0) // GROUP] * (w.reshape(K, N) - 128))


def awq(x: Any, weight: Any, zeros: Any, scales: Any) -> Any:
    """Words along the columns, in an order of their own."""
    bits, order = torch.arange(0, 32, 4), torch.arange(N).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(-1)
    w, z = (((it[:, :, None] >> bits[None, None]).to(torch.int8).reshape(-1, N)[:, order]) & 15 for it in (weight, zeros))
    return x @ ((w - z.repeat_interleave(GROUP, 0)) * scales.repeat_interleave(GROUP, 0))


def int4_groups(x: Any, packed: Any, scales: Any, zeros: Any) -> Any:
    w = torch.stack([packed & 15, packed >> 4], -1).view(N, K // GROUP, GROUP).to(x.dtype)
    return f.linear(x, ((w - zeros[..., None]) * scales[..., None]).view(N, K))


def nf4(x: Any, packed: Any, largest: Any, code: Any) -> Any:
    places = torch.stack([packed >> 4, packed & 15], -1).view(-1).long()
    return f.linear(x, (code[places].view(-1, GROUP) * largest[:, None]).view(N, K))


def mxfp4(x: Any, packed: Any, exponents: Any, code: Any) -> Any:
    """Numbers of four bits times powers of two, as transformers unpacks those of gpt-oss."""
    w = x.new_empty(N * K // GROUP, GROUP)
    w[:, 0::2], w[:, 1::2] = code[(packed & 15).int()], code[(packed >> 4).int()]
    w = torch.ldexp(w, exponents.to(torch.int32) - 127)
    return f.linear(x, w.view(N, K))


def llm_int8(x: Any, w: Any, scales: Any) -> Any:
    own = x.abs().amax(-1, keepdim=True)
    return torch._int_mm(torch.round(x * (127 / own)).to(torch.int8), w.t()) * (own * scales / 127**2)


def per_tensor(x: Any, w: Any) -> Any:
    x8 = DECOMPOSED.quantize_per_tensor(x, 0.05, 3, 0, 255, torch.uint8)
    x = DECOMPOSED.dequantize_per_tensor(x8, 0.05, 3, 0, 255, torch.uint8)
    return f.linear(x, DECOMPOSED.dequantize_per_tensor(w, 0.01, 0, -127, 127, torch.int8))


def per_channel(x: Any, w: Any, scales: Any) -> Any:
    zeros = torch.zeros(N, dtype=torch.int64)
    return f.linear(x, DECOMPOSED.dequantize_per_channel(w, scales, zeros, 0, -128, 127, torch.int8))


def per_group(x: Any, w: Any, scales: Any, zeros: Any) -> Any:
    return f.linear(x, DECOMPOSED.dequantize_per_channel_group(w, scales, zeros, -8, 7, torch.int8, GROUP, torch.float32))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gptq": (gptq, GPTQ),
    "gptq by index": (gptq_by_index, GPTQ),
    "gptq of bytes": (gptq_of_bytes, (X, _words(K // 4, N), SCALES)),
    "awq": (awq, (X, _words(K, N // 8), _words(K // GROUP, N // 8), SCALES)),
    "int4 in groups": (int4_groups, (X, _whole(0, 256, (N, K // 2), torch.uint8), SCALES.T, _whole(0, 16, (N, 2), X.dtype))),
    "nf4": (nf4, (X, _whole(0, 256, (N * K // 2,), torch.uint8), _numbers(N * K // GROUP).abs(), torch.linspace(-1, 1, 16))),
    "mxfp4": (
        mxfp4,
        (X, _whole(0, 256, (N * K // GROUP, GROUP // 2), torch.uint8), _whole(97, 158, (N * K // GROUP, 1), torch.uint8), FP4),
    ),
    "llm.int8": (llm_int8, (_numbers(24, K), BYTES, SCALES[0])),
    "per tensor": (per_tensor, (X, BYTES)),
    "per channel": (per_channel, (X, BYTES, SCALES[0])),
    "per group": (per_group, (X, BYTES // 16, SCALES.T, torch.zeros(N, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_quantized_weights_are_read_inside_as_torch_reads_them(name: str) -> None:
    function, arguments = CASES[name]
    it = imported(function, *arguments)
    assert it.outside == ()
    assert relative_error(it.run(*arguments), function(*arguments)) <= 1e-6


def _program(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Graph:
    [segment] = imported(function, *arguments).segments
    return segment.program


def test_unpacked_words_are_one_kernel_since_they_do_not_wrap() -> None:
    program = _program(gptq, GPTQ)
    assert DType.int8 in program.dtypes and not barriers(program)


Change = Callable[[KernelGraph, Tensor], Tensor]


def _same(g: KernelGraph, x: Tensor) -> Tensor:
    return x


def _of_words(bits: Change = _same, scales: Change = _same, numbers: Change = _same) -> Graph:
    """A product with a weight in words, with a change of what it reads."""
    g = new_kernel_graph()
    x, words, amounts = g.new_input((3, K), "float32"), g.new_input((K // 8, 1, N), "int32"), g.new_input((1, 8, 1), "int32")
    factors = scales(g, g.new_input((K // GROUP, 1, N), "float32"))
    taken = g.op("low_bits", g.op("right_shift_by", words, bits(g, amounts)), bits=4)
    w = g.reshape(numbers(g, g.cast(taken, "float32")) - 8, (K // GROUP, GROUP, N)) * factors
    g.mark_output(g.matmul(x, g.reshape(w, (K, N))))
    return expand(g.graph())


WRONG: dict[str, Graph] = {
    "the other nibbles": _of_words(bits=lambda g, x: x + 4),
    "nibbles in another order": _of_words(bits=lambda g, x: g.flip(x, [1])),
    "another zero point": _of_words(numbers=lambda g, x: x - 1),
    "the scales of the other group": _of_words(scales=lambda g, x: g.flip(x, [0])),
    "no scale": _of_words(scales=lambda g, x: x * 0 + 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_other_reading_of_words_is_equal(name: str) -> None:
    reference = Reference(_of_words())
    assert reference.check(_of_words()).verdict is Equality.EQUAL
    assert reference.check(WRONG[name]).verdict is Equality.NOT_EQUAL


def test_integers_that_may_wrap_are_known() -> None:
    g = new_kernel_graph()
    x, y = g.new_input((4,), "int8"), g.new_input((4,), "uint8")
    low, high = g.op("low_bits", y, bits=4), g.op("right_shift", y, bits=4)
    values = {
        "nibbles": g.cast(low, "int8") - g.cast(high, "int8"),
        "bytes": x + x,
        "products of nibbles": low * high,
        "nibbles times 17": low * 17,
        "nibbles times 18": low * 18,
        "wider": g.cast(x, "int32") * g.cast(y, "int32"),
    }
    for value in values.values():
        g.mark_output(value)
    wrapped = wrapped_values(g.graph())
    assert {name for name, value in values.items() if value.position in wrapped} == {"bytes", "nibbles times 18"}


BYTE_WORDS = _whole(0, 256, (N, K // 2), torch.uint8)
OF_ONE_WORD: dict[str, tuple[Any, int]] = {
    "nibbles": (lambda w: torch.stack([w & 15, w >> 4], -1), 2),
    "the upper first, at the front": (lambda w: torch.stack([(w >> 4) & 15, w & 15], 0), 2),
    "joined": (lambda w: torch.cat([(w & 15).unsqueeze(1), (w >> 4).unsqueeze(1)], 1), 2),
    "pairs of bits": (lambda w: torch.stack([(w >> shift) & 3 for shift in (0, 2, 4, 6)], -1), 4),
    "of int32": (lambda w: torch.stack([(one >> shift) & 7 for one in [w.int()] for shift in (3, 9)], -1), 2),
}
OF_OTHERS: dict[str, Any] = {
    "two words": lambda w: torch.stack([w & 15, w.flip(0) >> 4], -1),
    "of other lengths": lambda w: torch.stack([w & 7, w >> 4], -1),
    "signed": lambda w: torch.stack([w.to(torch.int8) & 15, w.to(torch.int8) >> 4], -1),
    "side by side": lambda w: torch.cat([w & 15, w >> 4], 1),
}


@pytest.mark.parametrize("name", [*OF_ONE_WORD, *OF_OTHERS])
def test_fields_of_one_word_are_one_shift_by_a_tensor(name: str) -> None:
    stacked, count = OF_ONE_WORD[name] if name in OF_ONE_WORD else (OF_OTHERS[name], 0)

    def model(w: Any) -> Any:
        return stacked(w).float() * 2

    it = imported(model, BYTE_WORDS)
    assert it.outside == () and torch.equal(it.run(BYTE_WORDS), model(BYTE_WORDS))
    ops = [item.op for item in it.segments[0].program.nodes]
    assert (ops.count("right_shift_by"), ops.count("concat")) == ((1, 0) if count else (0, 1))
    if count:
        assert ops.count("cast") == 1 + ("int32" in name)
