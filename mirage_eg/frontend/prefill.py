"""Programs of prefill, whose products are limited by arithmetic, in float16: for the GPU benchmark."""

from math import sqrt

from mirage_eg.frontend.workloads import named, workload
from mirage_eg.ir.builder import KernelGraph, Tensor

_HEADS, _TOKENS = 32, 2048


@workload
def norm_linear_prefill(g: KernelGraph, batch: int) -> Tensor:
    """rms_norm(X) · g, then a linear layer: 2,048 tokens of 4,096."""
    x, scale = g.new_input((_TOKENS * batch, 4096), name="X"), g.new_input((4096,), name="g")
    w = g.new_input((4096, 4096), name="W")
    return g.rms_norm(x, 4096, scale) @ w


@workload
def gated_mlp_prefill(g: KernelGraph, batch: int) -> Tensor:
    """silu(X W1) · (X W2): 2,048 tokens of 4,096."""
    x = g.new_input((_TOKENS * batch, 4096), name="X")
    w1, w2 = (g.new_input((4096, 4096), name=name) for name in ("W1", "W2"))
    return g.silu(x @ w1) * (x @ w2)


@workload
def lora_prefill(g: KernelGraph, batch: int) -> Tensor:
    """X W + (X A) B: 512 tokens of 4,096, rank 64."""
    x, w = g.new_input((512 * batch, 4096), name="X"), g.new_input((4096, 4096), name="W")
    a, b = g.new_input((4096, 64), name="A"), g.new_input((64, 4096), name="B")
    return x @ w + (x @ a) @ b


@workload
def attention_prefill(g: KernelGraph, batch: int) -> Tensor:
    """softmax(Q Kᵀ / 8) V: 32 heads of 2,048 tokens, 64 wide."""
    return _attention(g, batch, 64, causal=False)


@workload
def wide_attention_prefill(g: KernelGraph, batch: int) -> Tensor:
    """The same, 128 wide."""
    return _attention(g, batch, 128, causal=False)


@workload
def causal_attention_prefill(g: KernelGraph, batch: int) -> Tensor:
    """The same, 64 wide, with a constant causal mask."""
    return _attention(g, batch, 64, causal=True)


@workload
def wide_causal_attention_prefill(g: KernelGraph, batch: int) -> Tensor:
    """The same, 128 wide."""
    return _attention(g, batch, 128, causal=True)


def _attention(g: KernelGraph, batch: int, width: int, causal: bool) -> Tensor:
    q = g.new_input((_HEADS * batch, _TOKENS, width), name="Q")
    k = g.new_input((_HEADS * batch, width, _TOKENS), name="K", strides=(width * _TOKENS, 1, width))  # a row a key
    v = g.new_input((_HEADS * batch, _TOKENS, width), name="V")
    mask = g.new_input((_TOKENS, _TOKENS), "bool", name="mask", weight=True) if causal else None
    return g.softmax(g.scale(q @ k, 1 / sqrt(width)), 2, mask) @ v


PREFILL = named(
    *(norm_linear_prefill, gated_mlp_prefill, lora_prefill),
    *(attention_prefill, wide_attention_prefill, causal_attention_prefill, wide_causal_attention_prefill),
)
