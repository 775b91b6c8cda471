"""Programs of prefill, whose products are limited by arithmetic, in float16: for the GPU benchmark."""

from collections.abc import Callable
from math import sqrt

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph

_HEADS, _TOKENS = 32, 2048


def norm_linear_prefill(batch: int = 1) -> Graph:
    """rms_norm(X) · g, then a linear layer: 2,048 tokens of 4,096."""
    program = new_kernel_graph()
    x = program.new_input((_TOKENS * batch, 4096), name="X")
    g = program.new_input((4096,), name="g")
    w = program.new_input((4096, 4096), name="W")
    program.mark_output(program.matmul(program.rms_norm(x, 4096, g), w), name="O")
    return program.graph()


def gated_mlp_prefill(batch: int = 1) -> Graph:
    """silu(X W1) · (X W2): 2,048 tokens of 4,096."""
    program = new_kernel_graph()
    x = program.new_input((_TOKENS * batch, 4096), name="X")
    w1, w2 = (program.new_input((4096, 4096), name=name) for name in ("W1", "W2"))
    program.mark_output(program.silu(x @ w1) * (x @ w2), name="O")
    return program.graph()


def lora_prefill(batch: int = 1) -> Graph:
    """X W + (X A) B: 512 tokens of 4,096, rank 64."""
    program = new_kernel_graph()
    x = program.new_input((512 * batch, 4096), name="X")
    w = program.new_input((4096, 4096), name="W")
    a, b = program.new_input((4096, 64), name="A"), program.new_input((64, 4096), name="B")
    program.mark_output(x @ w + (x @ a) @ b, name="O")
    return program.graph()


def attention_prefill(batch: int = 1) -> Graph:
    """softmax(Q Kᵀ / 8) V: 32 heads of 2,048 tokens, 64 wide."""
    return _attention(batch, 64, causal=False)


def wide_attention_prefill(batch: int = 1) -> Graph:
    """The same, 128 wide."""
    return _attention(batch, 128, causal=False)


def causal_attention_prefill(batch: int = 1) -> Graph:
    """The same, 64 wide, with a constant causal mask."""
    return _attention(batch, 64, causal=True)


def wide_causal_attention_prefill(batch: int = 1) -> Graph:
    """The same, 128 wide."""
    return _attention(batch, 128, causal=True)


def _attention(batch: int, width: int, causal: bool) -> Graph:
    program = new_kernel_graph()
    q = program.new_input((_HEADS * batch, _TOKENS, width), name="Q")
    k = program.new_input((_HEADS * batch, width, _TOKENS), name="K", strides=(width * _TOKENS, 1, width))  # a row a key
    v = program.new_input((_HEADS * batch, _TOKENS, width), name="V")
    mask = program.new_input((_TOKENS, _TOKENS), "bool", name="mask", weight=True) if causal else None
    scores = program.scale(q @ k, 1 / sqrt(width))
    program.mark_output(program.softmax(scores, 2, mask) @ v, name="O")
    return program.graph()


PREFILL: dict[str, Callable[[int], Graph]] = {
    workload.__name__: workload
    for workload in (
        norm_linear_prefill,
        gated_mlp_prefill,
        lora_prefill,
        attention_prefill,
        wide_attention_prefill,
        causal_attention_prefill,
        wide_causal_attention_prefill,
    )
}
