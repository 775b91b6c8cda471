"""Baselines in Helion, where it is installed: a kernel for each program, tuned by Helion on these inputs.

Helion's own variables bound the tuning of each kernel: HELION_AUTOTUNE_EFFORT, here quick by default, and
HELION_AUTOTUNE_BUDGET_SECONDS, 60 by default.
"""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from logging import ERROR
from math import e, log2
from typing import Any

Make = Callable[[Sequence[Any]], Callable[[], Any]]

_LOG2_E = log2(e)
_BLOCKS, _ROWS, _KEYS = 264, 64, 128  # two blocks for each multiprocessor of an H100; queries of a block, least keys of one


def helion_baselines(workload: str) -> dict[str, Make]:
    """The Helion baselines of a built-in workload by name; none without Helion, or where there is no kernel for it."""
    return {} if find_spec("helion") is None else dict(_BASELINES.get(workload, {}))


def _kernel(name: str) -> Any:
    import helion

    from mirage_eg.lab.baselines import helion_kernels

    return helion.kernel(
        getattr(helion_kernels, name),
        autotune_effort=os.environ.get("HELION_AUTOTUNE_EFFORT", "quick"),
        autotune_budget_seconds=int(os.environ.get("HELION_AUTOTUNE_BUDGET_SECONDS", "60")),
        autotune_ignore_errors=True,
        autotune_log_level=ERROR,
        autotune_progress_bar=False,
        autotune_random_seed=0,
    )


def _call(name: str, arrange: Callable[..., tuple[Any, ...]] = lambda *tensors: tensors) -> Make:
    """One kernel on the arranged inputs; the first call tunes. A result takes the shape of the program's."""

    def make(tensors: Sequence[Any]) -> Callable[[], Any]:
        kernel, arguments = _kernel(name), arrange(*tensors)
        kernel(*arguments)
        return lambda: kernel(*arguments)

    return make


def _shaped(make: Make, shape: Callable[[Any], tuple[int, ...]]) -> Make:
    """The result of `make` with a shape that depends on the first input."""

    def reshaped(tensors: Sequence[Any]) -> Callable[[], Any]:
        run = make(tensors)
        return lambda: run().view(shape(tensors[0]))

    return reshaped


def _norm_then_matmul(tensors: Sequence[Any]) -> Callable[[], Any]:
    x, g, w = tensors
    norm = _kernel("norm")
    norm(x, g)
    return lambda: norm(x, g) @ w


def _by_keys(q: Any, k: Any, v: Any, *mask: Any) -> tuple[Any, ...]:
    """The arguments of an attention kernel: a row for each key, and the scale of the scores to base 2."""
    return q, k.transpose(-1, -2).contiguous(), v, _LOG2_E / q.shape[-1] ** 0.5


def parts_of(heads: int, queries: int, keys: int) -> int:
    """Parts of the keys for split-K: a power of two with which the blocks still run at once."""
    parts, tiles = 1, heads * -(-queries // _ROWS)
    while 2 * parts * tiles <= _BLOCKS and keys % (2 * parts) == 0 and keys // (2 * parts) >= _KEYS:
        parts *= 2
    return parts


def _split_attention(name: str) -> Make:
    """Two kernels: parts of the keys, then their combination."""

    def make(tensors: Sequence[Any]) -> Callable[[], Any]:
        arguments = _by_keys(*tensors)
        q, k = arguments[:2]
        parts = parts_of(q.shape[0], q.shape[1], k.shape[1])
        first, second = _kernel(name), _kernel("joined_parts")
        second(*first(*arguments, parts), q)
        return lambda: second(*first(*arguments, parts), q)

    return make


_DECODE = {"Helion split-K": _split_attention("attention_parts")}
_PREFILL = {"Helion": _call("attention", _by_keys)}
_CAUSAL = {"Helion": _call("causal_attention", _by_keys)}
_GROUP_NORM = _call("group_norm", lambda x, weight, bias: (x.view(x.shape[0] * 32, -1), weight.view(32, -1), bias.view(32, -1)))
_BASELINES: dict[str, dict[str, Make]] = {
    "rmsnorm": {"Helion": _call("norm_linear")},
    "gated_mlp": {"Helion": _call("gated_mlp")},
    "lora": {"Helion": _call("lora")},
    "gqa": _DECODE,
    "qknorm": {"Helion split-K": _split_attention("normal_attention_parts")},
    "ntrans": {"Helion": _call("ntrans")},
    "mha": _DECODE,
    "mqa": _DECODE,
    "softmax": {"Helion": _call("softmax")},
    "log_softmax": {"Helion": _call("log_softmax")},
    "cross_entropy": {
        "Helion": _shaped(_call("cross_entropy", lambda x, target: (x, target.view(-1))), lambda x: (x.shape[0], 1))
    },
    "layer_norm": {"Helion": _call("layer_norm")},
    "group_norm": {"Helion": _shaped(_GROUP_NORM, lambda x: tuple(x.shape))},
    "add_rms_norm": {"Helion": _call("add_rms_norm")},
    "norm_linear_prefill": {"Helion": _call("norm_linear"), "Helion norm + matmul": _norm_then_matmul},
    "gated_mlp_prefill": {"Helion": _call("gated_mlp")},
    "lora_prefill": {"Helion": _call("lora")},
    "attention_prefill": _PREFILL,
    "wide_attention_prefill": _PREFILL,
    "causal_attention_prefill": _CAUSAL,
    "wide_causal_attention_prefill": _CAUSAL,
}
