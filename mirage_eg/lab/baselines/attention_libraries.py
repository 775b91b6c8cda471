"""Attention by other projects as baselines, where installed: FlashInfer, and FlashAttention in CuTe (`flash-attn-4`).

Both compile their kernels at the first call. FlashInfer splits the keys of few queries (its back end fa2), or uses the
instructions of sm_90 (fa3). FlashAttention in CuTe has no split-K for sm_90.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

Make = Callable[[Sequence[Any]], Callable[[], Any]]
Norms = Callable[[Any, Any], tuple[Any, Any]]


def attention_libraries(workload: str) -> dict[str, Make]:
    """The baselines of a built-in workload by name; none for other workloads than attention."""
    if workload not in _BACKENDS:
        return {}
    normalized, causal = workload == "qknorm", "causal" in workload
    found: dict[str, Make] = {}
    if find_spec("flashinfer") is not None:
        for backend in _BACKENDS[workload]:
            found[f"FlashInfer {backend}"] = partial(_flashinfer, backend, normalized, causal)
    if find_spec("flash_attn") is not None and find_spec("flash_attn.cute") is not None:
        found["FlashAttention CuTe"] = partial(_cute, normalized, causal)
    return {f"compiled norms + {name}": make for name, make in found.items()} if normalized else found


_BACKENDS = dict.fromkeys(("gqa", "qknorm", "mha", "mqa"), ("fa2", "fa3")) | dict.fromkeys(
    ("attention_prefill", "wide_attention_prefill", "causal_attention_prefill", "wide_causal_attention_prefill"), ("fa3",)
)


def _flashinfer(backend: str, normalized: bool, causal: bool, tensors: Sequence[Any]) -> Callable[[], Any]:
    """Queries as tokens × heads × width, keys and values as heads × tokens × width."""
    from flashinfer import single_prefill_with_kv_cache

    q, k, v = tensors[:3]
    q, k = q.transpose(0, 1).contiguous(), k.transpose(-1, -2).contiguous()
    norms = rows_normalized(normalized, q, k)

    def run() -> Any:
        queries, keys = norms(q, k)
        return single_prefill_with_kv_cache(queries, keys, v, causal=causal, kv_layout="HND", backend=backend).transpose(0, 1)

    run()
    return run


def _cute(normalized: bool, causal: bool, tensors: Sequence[Any]) -> Callable[[], Any]:
    """Each head is an entry of the batch with one head: batch × tokens × 1 × width."""
    from flash_attn.cute import flash_attn_func

    q, k, v = tensors[:3]
    q, k, v = q[:, :, None], k.transpose(-1, -2).contiguous()[:, :, None], v[:, :, None]
    norms = rows_normalized(normalized, q, k)

    def run() -> Any:
        queries, keys = norms(q, k)
        result = flash_attn_func(queries, keys, v, causal=causal)
        return (result[0] if isinstance(result, tuple) else result)[:, :, 0]

    run()
    return run


def rows_normalized(normalized: bool, q: Any, k: Any) -> Norms:
    """The function that divides rows of q and k by their rms, compiled for these; or the one that leaves them."""
    import torch

    if not normalized:
        return lambda q, k: (q, k)

    def norms(q: Any, k: Any) -> tuple[Any, Any]:
        norm = torch.nn.functional.rms_norm
        return norm(q, (q.shape[-1],), eps=0.0), norm(k, (k.shape[-1],), eps=0.0)

    torch._dynamo.reset()
    compiled: Norms = torch.compile(norms, dynamic=False)
    compiled(q, k)
    return compiled
