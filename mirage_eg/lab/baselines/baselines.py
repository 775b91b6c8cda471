"""Baselines of the generated kernels: PyTorch eager, compiled, its fused library calls, and those of other projects.

Each baseline takes the program's inputs and gives its output, or a tuple of outputs. Some copy their inputs into the layout
that the library prefers; the copy is not timed. External ones are there where their packages are installed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.graph import Graph
from mirage_eg.lab.baselines.attention_libraries import attention_libraries, rows_normalized
from mirage_eg.lab.baselines.helion_baselines import helion_baselines

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Baseline:
    """`make` prepares, and returns the call that is timed; `slow` baselines prepare for tens of seconds, on the GPU.

    An `external` one is of another project than PyTorch.
    """

    name: str
    make: Callable[[Sequence[Any]], Run]
    slow: bool = False
    external: bool = False


def baselines(workload: str) -> list[Baseline]:
    """The baselines of a built-in workload."""
    found = helion_baselines(workload) | attention_libraries(workload)
    library = [Baseline(name, make) for name, make in _LIBRARY.get(workload, {}).items()]
    external = [Baseline(name, _with_runtime_errors(make), slow=True, external=True) for name, make in found.items()]
    return _of_torch(EAGER[workload]) + library + external


def _with_runtime_errors(make: Callable[[Sequence[Any]], Run]) -> Callable[[Sequence[Any]], Run]:
    """`make` with one kind of error: other projects raise errors of their own, also where their version does not fit torch."""

    def made(tensors: Sequence[Any]) -> Run:
        try:
            return make(tensors)
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return made


@contextmanager
def program_baselines(program: Graph) -> Iterator[list[Baseline]]:
    """The baselines of any other program: its ops as calls of PyTorch, eager and compiled."""
    with loaded(emit(program)) as module:
        yield _of_torch(module.run)


def _of_torch(eager: Callable[..., Any]) -> list[Baseline]:
    return [
        Baseline("eager", lambda tensors: lambda: eager(*tensors)),
        Baseline("torch.compile", lambda tensors: _compiled(eager, tensors, "default")),
        Baseline(
            "torch.compile max-autotune", lambda tensors: _compiled(eager, tensors, "max-autotune-no-cudagraphs"), slow=True
        ),
    ]


def _compiled(function: Callable[..., Any], tensors: Sequence[Any], mode: str) -> Run:
    torch._dynamo.reset()
    compiled = torch.compile(function, mode=mode, dynamic=False)
    compiled(*tensors)
    return lambda: compiled(*tensors)


def _rmsnorm(x: Any, g: Any, w: Any) -> Any:
    return (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True)).to(x.dtype) * g) @ w


def _rmsnorm_library(x: Any, g: Any, w: Any) -> Any:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), g, eps=0.0) @ w


def _gated_mlp(x: Any, w1: Any, w2: Any) -> Any:
    return torch.nn.functional.silu(x @ w1) * (x @ w2)


def _gated_mlp_packed(tensors: Sequence[Any]) -> Run:
    """Both weights side by side: one product."""
    x, w1, w2 = tensors
    packed = torch.cat([w1, w2], dim=1).contiguous()

    def run() -> Any:
        gate, up = (x @ packed).chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up

    return run


def _lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ w + (x @ a) @ b


def _lora_addmm(x: Any, w: Any, a: Any, b: Any) -> Any:
    return torch.addmm(x @ w, x @ a, b)


def _attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k / 8, dim=-1) @ v


def _qknorm(q: Any, k: Any, v: Any) -> Any:
    q = q * torch.rsqrt(q.float().square().mean(-1, keepdim=True)).to(q.dtype)
    k = k * torch.rsqrt(k.float().square().mean(-2, keepdim=True)).to(k.dtype)
    return _attention(q, k, v)


def _ntrans(h: Any, x: Any, alpha: Any) -> Any:
    y = x + alpha * (_norm(h) - x)
    return _norm(y)


def _norm(x: Any) -> Any:
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True)).to(x.dtype)


def _ntrans_library(h: Any, x: Any, alpha: Any) -> Any:
    norm = torch.nn.functional.rms_norm
    return norm(torch.lerp(x, norm(h, (h.shape[-1],), eps=0.0), alpha), (x.shape[-1],), eps=0.0)


def _mlp_block(r: Any, g: Any, gate: Any, up: Any, down: Any) -> Any:
    h = _norm(r) * g
    return r + (torch.nn.functional.silu(h @ gate) * (h @ up)) @ down


def _mlp_block_library(r: Any, g: Any, gate: Any, up: Any, down: Any) -> Any:
    h = torch.nn.functional.rms_norm(r, (r.shape[-1],), g, eps=0.0)
    return torch.addmm(r, torch.nn.functional.silu(h @ gate) * (h @ up), down)


def _decoder_layer(x: Any, g1: Any, wq: Any, wk: Any, wv: Any, k: Any, v: Any, wo: Any, *mlp: Any) -> Any:
    h = _norm(x) * g1
    q = (h @ wq).view(-1, 8, 4, 128)
    attended = torch.softmax(q @ k / 128**0.5, dim=-1) @ v
    r = x + attended.reshape(x.shape) @ wo
    return _mlp_block(r, *mlp), h @ wk, h @ wv


def _decoder_layer_library(tensors: Sequence[Any]) -> Run:
    """One product for QKV, FlashAttention of grouped heads, the residual within the product."""
    functional = torch.nn.functional
    x, g1, wq, wk, wv, k, v, wo, *mlp = tensors
    packed, keys = torch.cat([wq, wk, wv], dim=1).contiguous(), k.transpose(-1, -2).contiguous()

    def run() -> Any:
        q, k_new, v_new = (functional.rms_norm(x, (4096,), g1, eps=0.0) @ packed).split((4096, 1024, 1024), dim=1)
        attended = functional.scaled_dot_product_attention(q.reshape(-1, 8, 4, 128), keys, v)
        r = torch.addmm(x, attended.reshape(x.shape), wo)
        return _mlp_block_library(r, *mlp), k_new, v_new

    return run


def _sdpa(backend: str, normalized: bool = False, causal: bool = False) -> Callable[[Sequence[Any]], Run]:
    """Scaled-dot-product attention with one back end; K has a row for each key, as all back ends require."""

    def make(tensors: Sequence[Any]) -> Run:
        functional = torch.nn.functional
        q, k, v = (tensor[None] for tensor in tensors[:3])
        k = k.transpose(-1, -2).contiguous()
        norms = rows_normalized(normalized, q, k)

        def run() -> Any:
            queries, keys = norms(q, k)
            with sdpa_kernel([getattr(SDPBackend, backend)]):
                return functional.scaled_dot_product_attention(queries, keys, v, is_causal=causal)[0]

        return run

    return make


def _flex(causal: bool = False) -> Callable[[Sequence[Any]], Run]:
    """FlexAttention, compiled, with the mask in its own form: it skips masked tiles."""

    def make(tensors: Sequence[Any]) -> Run:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v = (tensor[None] for tensor in tensors[:3])
        k = k.transpose(-1, -2).contiguous()
        rows, columns = q.shape[-2], k.shape[-2]
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, rows, columns, device=q.device) if causal else None
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)

        def run() -> Any:
            return compiled(q, k, v, block_mask=mask)[0]

        run()
        return run

    return make


def _masked_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = (q @ k / q.shape[-1] ** 0.5).masked_fill(~mask.bool(), float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def _add_rms_norm(x: Any, r: Any, g: Any) -> Any:
    residual = x + r
    return _norm(residual) * g, residual


def _add_rms_norm_library(x: Any, r: Any, g: Any) -> Any:
    residual = x + r
    return torch.nn.functional.rms_norm(residual, (residual.shape[-1],), g, eps=0.0), residual


def _call(function: Callable[..., Any]) -> Callable[[Sequence[Any]], Run]:
    return lambda tensors: lambda: function(*tensors)


EAGER: dict[str, Callable[..., Any]] = {
    "rmsnorm": _rmsnorm,
    "gated_mlp": _gated_mlp,
    "lora": _lora,
    "gqa": _attention,
    "qknorm": _qknorm,
    "ntrans": _ntrans,
    "mha": _attention,
    "mqa": _attention,
    "mlp_block": _mlp_block,
    "decoder_layer": _decoder_layer,
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "log_softmax": lambda x: torch.log_softmax(x, dim=-1),
    "cross_entropy": lambda x, target: torch.nn.functional.cross_entropy(x, target[:, 0], reduction="none")[:, None],
    "layer_norm": lambda x, weight, bias: torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias),
    "group_norm": lambda x, weight, bias: torch.nn.functional.group_norm(x, 32, weight, bias),
    "add_rms_norm": _add_rms_norm,
    "norm_linear_prefill": _rmsnorm,
    "gated_mlp_prefill": _gated_mlp,
    "lora_prefill": _lora,
    "attention_prefill": _attention,
    "wide_attention_prefill": lambda q, k, v: torch.softmax(q @ k / q.shape[-1] ** 0.5, dim=-1) @ v,
    "causal_attention_prefill": _masked_attention,
    "wide_causal_attention_prefill": _masked_attention,
}
_ATTENTION = {
    "SDPA FlashAttention": _sdpa("FLASH_ATTENTION"),
    "SDPA cuDNN": _sdpa("CUDNN_ATTENTION"),
    "SDPA efficient": _sdpa("EFFICIENT_ATTENTION"),
}
_CAUSAL_ATTENTION = {
    "SDPA FlashAttention": _sdpa("FLASH_ATTENTION", causal=True),
    "SDPA cuDNN": _sdpa("CUDNN_ATTENTION", causal=True),
    "FlexAttention": _flex(causal=True),
}
_LIBRARY: dict[str, dict[str, Callable[[Sequence[Any]], Run]]] = {
    "rmsnorm": {"F.rms_norm + matmul": _call(_rmsnorm_library)},
    "gated_mlp": {"one matmul of packed weights": _gated_mlp_packed},
    "lora": {"addmm": _call(_lora_addmm)},
    "gqa": _ATTENTION,
    "qknorm": {
        "compiled norms + SDPA FlashAttention": _sdpa("FLASH_ATTENTION", normalized=True),
        "compiled norms + SDPA cuDNN": _sdpa("CUDNN_ATTENTION", normalized=True),
    },
    "ntrans": {"F.rms_norm": _call(_ntrans_library)},
    "mha": _ATTENTION,
    "mqa": _ATTENTION,
    "mlp_block": {"F.rms_norm + addmm": _call(_mlp_block_library)},
    "decoder_layer": {"packed QKV + SDPA + addmm": _decoder_layer_library},
    "add_rms_norm": {"F.rms_norm": _call(_add_rms_norm_library)},
    "norm_linear_prefill": {"F.rms_norm + matmul": _call(_rmsnorm_library)},
    "gated_mlp_prefill": {"one matmul of packed weights": _gated_mlp_packed},
    "lora_prefill": {"addmm": _call(_lora_addmm)},
    "attention_prefill": _ATTENTION | {"FlexAttention": _flex()},
    "wide_attention_prefill": _ATTENTION | {"FlexAttention": _flex()},
    "causal_attention_prefill": _CAUSAL_ATTENTION,
    "wide_causal_attention_prefill": _CAUSAL_ATTENTION,
}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and logs of torch.compile."""
    import logging
    import warnings

    loggers = [logging.getLogger(name) for name in ("torch._inductor", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def ceilings() -> dict[str, float]:
    """Rates that this GPU reaches now: bytes a second of a copy through memory, float16 operations a second of a product."""
    from mirage_eg.backends.measure.timing import event_us

    source = torch.empty(1 << 29, dtype=torch.int16, device="cuda").zero_()
    copied = torch.empty_like(source)
    copy_us = min(event_us(lambda: copied.copy_(source), repeats=10))
    sums_us = min(event_us(lambda: source.view(torch.int64).amax(), repeats=10))
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    product_us = min(event_us(lambda: left @ left, repeats=10))
    nbytes = source.numel() * source.element_size()
    return {
        "bytes_per_second": max(2 * nbytes / copy_us, nbytes / sums_us) * 1e6,
        "flops_per_second": 2 * 8192**3 / product_us * 1e6,
    }
