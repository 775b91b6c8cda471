"""Programs that people write on their first day, each of which once crashed, came out wrong or stood behind a slow µGraph."""

from collections.abc import Callable
from functools import partial

import mirage_eg as mi
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph


def _program(write: Callable[[KernelGraph, Tensor], Tensor], shape: tuple[int, ...], dtype: str = "float16") -> Graph:
    """A program of one input of `shape` and, where `write` adds them, others."""
    builder = mi.new_kernel_graph()
    builder.mark_output(write(builder, builder.new_input(shape, dtype, name="X")))
    return builder.graph()


def gelu_tanh(p: KernelGraph, x: Tensor) -> Tensor:
    """gelu's tanh form written out: x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    inner = p.scale(p.add(x, p.scale(p.mul(x, p.square(x)), 0.044715)), 0.7978845608028654)
    return p.mul(p.scale(x, 0.5), p.shift(p.tanh(inner), 1))


def scaled_products(p: KernelGraph, x: Tensor, count: int = 40) -> Tensor:
    """A chain of elementwise products, each scaled by a constant of its own."""
    for i in range(count):
        x = p.scale(p.mul(x, p.sigmoid(x)), 1 + 1 / (3 + i))
    return x


def self_attention_scores(p: KernelGraph, x: Tensor) -> Tensor:
    """softmax(X Xᵀ / 8)."""
    return p.softmax(p.scale(p.matmul(x, p.transpose(x, (1, 0))), 0.125), 1)


def gram(p: KernelGraph, x: Tensor) -> Tensor:
    """Xᵀ X."""
    return p.matmul(p.transpose(x, (1, 0)), x)


def log_of_softmax(p: KernelGraph, x: Tensor) -> Tensor:
    """log(softmax(x))."""
    return p.log(p.softmax(x, 1))


def log_softmax_by_sum(p: KernelGraph, x: Tensor) -> Tensor:
    """x − log Σ exp(x)."""
    return p.sub(x, p.log(p.sum(p.exp(x), 1)))


def log_softmax_written_out(p: KernelGraph, x: Tensor) -> Tensor:
    """log(exp(x) / Σ exp(x))."""
    exponentials = p.exp(x)
    return p.log(p.div(exponentials, p.sum(exponentials, 1)))


def cross_entropy(p: KernelGraph, x: Tensor) -> Tensor:
    """Mean over the rows of log Σ exp(x) − Σ target · x, for a one-hot target."""
    target = p.new_input(x.shape, x.dtype, name="target")
    return p.mean(p.sub(p.log(p.sum(p.exp(x), 1)), p.sum(p.mul(target, x), 1)), 0)


def rotary(p: KernelGraph, x: Tensor) -> Tensor:
    """Rotary embedding by halves: x · cos + concat(−b, a) · sin for x = concat(a, b)."""
    cos, sin = (p.new_input(x.shape[1:], x.dtype, name=name) for name in ("cos", "sin"))
    a, b = p.split(x, 2, 2)
    return p.add(p.mul(x, cos), p.mul(p.concat([p.scale(b, -1), a], 2), sin))


def root_of_input(p: KernelGraph, x: Tensor) -> Tensor:
    """√x of the second input's rows' sums, undefined where they are negative."""
    return p.sqrt(p.sum(p.mul(x, p.new_input(x.shape, x.dtype, name="Y")), 1))


def rms_norm(p: KernelGraph, x: Tensor) -> Tensor:
    return p.rms_norm(x, x.shape[1], eps=1e-5)


def attention(keys: int, masked: bool, heads: int = 2, rows: int = 16, width: int = 64) -> Graph:
    """softmax(Q K / 8 + mask) V."""
    p = mi.new_kernel_graph()
    q, k = p.new_input((heads, rows, width), name="Q"), p.new_input((heads, width, keys), name="K")
    scores = p.scale(p.matmul(q, k), 0.125)
    if masked:
        scores = p.add(scores, p.new_input((rows, keys), name="mask"))
    p.matmul(p.softmax(scores, 2), p.new_input((heads, keys, width), name="V"))
    return p.graph()


EVERYDAY: dict[str, Callable[[], Graph]] = {
    "gelu_tanh": partial(_program, gelu_tanh, (64, 256)),
    "scaled_products": partial(_program, scaled_products, (64, 128), "float32"),
    "self_attention_scores": partial(_program, self_attention_scores, (128, 64)),
    "gram": partial(_program, gram, (256, 64)),
    "attention_4099": partial(attention, 4099, False),
    "masked_attention_4099": partial(attention, 4099, True),
    "cross_entropy_50": partial(_program, cross_entropy, (64, 50), "float32"),
    "cross_entropy_32000": partial(_program, cross_entropy, (16, 32_000), "float32"),
    "rotary": partial(_program, rotary, (8, 64, 64)),
    "root_of_input": partial(_program, root_of_input, (64, 128), "float32"),
    "sqrt_of_input": partial(_program, lambda p, x: p.sqrt(x), (64, 128), "float32"),
    "rms_norm_million": partial(_program, rms_norm, (1, 1_000_000)),
} | {
    f"{write.__name__}_{classes}": partial(_program, write, (16, classes))
    for classes in (50, 32_000)
    for write in (log_of_softmax, log_softmax_by_sum, log_softmax_written_out)
}
