"""Transformer layers of published shapes with random weights, built from torch alone: what `bench models` measures.

Shapes are those of the models' configurations. A decoding layer writes one token for each sequence into its cache of keys and
values by index, and attends to the whole cache.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Extents of a layer; `gated` layers have RMS norms, rotary positions and SwiGLU, others layer norms and GELU."""

    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    gated: bool = True
    normed_heads: bool = False  # an RMS norm of each head's queries and keys
    causal: bool = True


LLAMA_8B = LayerShape(4096, 32, 8, 128, 14336)
QWEN3_8B = LayerShape(4096, 32, 8, 128, 12288, normed_heads=True)
BERT_BASE = LayerShape(768, 12, 12, 64, 3072, gated=False, causal=False)
GPT2 = LayerShape(768, 12, 12, 64, 3072, gated=False)
TINY = LayerShape(32, 4, 2, 8, 48)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One row of the table: a layer, its batch and tokens, and the length of its cache where it decodes."""

    shape: LayerShape
    batch: int
    tokens: int
    cached: int = 0


ROWS: Mapping[str, LayerRow] = {
    **{f"llama-8b decode b={batch}": LayerRow(LLAMA_8B, batch, 1, 4096) for batch in (1, 16)},
    **{f"llama-8b prefill {tokens}": LayerRow(LLAMA_8B, 1, tokens) for tokens in (128, 1024)},
    **{f"qwen3-8b decode b={batch}": LayerRow(QWEN3_8B, batch, 1, 4096) for batch in (1, 16)},
    **{f"qwen3-8b prefill {tokens}": LayerRow(QWEN3_8B, 1, tokens) for tokens in (128, 1024)},
    **{f"bert-base b={batch}": LayerRow(BERT_BASE, batch, 128) for batch in (1, 32)},
    "vit-b": LayerRow(BERT_BASE, 1, 197),
    "gpt2": LayerRow(GPT2, 1, 128),
    "tiny": LayerRow(TINY, 1, 8),
}


_SMALL_TOKENS, _SMALL_CACHE = 8, 16


def shrunk(row: LayerRow) -> LayerRow:
    """A small layer of the same kind."""
    heads = TINY.kv_heads if row.shape.kv_heads < row.shape.heads else TINY.heads
    shape = replace(row.shape, width=TINY.width, heads=TINY.heads, kv_heads=heads, head=TINY.head, inner=TINY.inner)
    return LayerRow(shape, row.batch, min(row.tokens, _SMALL_TOKENS), min(row.cached, _SMALL_CACHE))


class Layer(nn.Module):  # type: ignore[misc]
    """One pre-norm transformer layer."""

    def __init__(self, shape: LayerShape, batch: int, cached: int) -> None:
        super().__init__()
        norm: Callable[[int], nn.Module] = nn.RMSNorm if shape.gated else nn.LayerNorm
        self.shape, self.cached = shape, cached
        self.before_attention, self.before_mlp = norm(shape.width), norm(shape.width)
        self.normed = nn.ModuleList(nn.RMSNorm(shape.head) for _ in range(2 * shape.normed_heads))
        bias, queries, keys = not shape.gated, shape.heads * shape.head, shape.kv_heads * shape.head
        self.queries = nn.Linear(shape.width, queries, bias=bias)
        self.keys, self.values = (nn.Linear(shape.width, keys, bias=bias) for _ in range(2))
        self.joined = nn.Linear(queries, shape.width, bias=bias)
        self.up = nn.Linear(shape.width, shape.inner, bias=bias)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False) if shape.gated else None
        self.down = nn.Linear(shape.inner, shape.width, bias=bias)
        if cached:
            for name in ("key_cache", "value_cache"):
                self.register_buffer(name, torch.randn(batch, shape.kv_heads, cached, shape.head))

    def forward(self, x: Any, places: Any, cos: Any, sin: Any) -> Any:
        """`places` are the positions of the tokens, `cos` and `sin` their angles."""
        x = x + self._attention(self.before_attention(x), places, cos, sin)
        h = self.before_mlp(x)
        inner = functional.gelu(self.up(h)) if self.gate is None else functional.silu(self.gate(h)) * self.up(h)
        return x + self.down(inner)

    def _attention(self, h: Any, places: Any, cos: Any, sin: Any) -> Any:
        batch, tokens, _ = h.shape
        heads = [
            part(h).view(batch, tokens, -1, self.shape.head).transpose(1, 2) for part in (self.queries, self.keys, self.values)
        ]
        if self.normed:
            heads[:2] = [norm(part) for norm, part in zip(self.normed, heads, strict=False)]
        if self.shape.gated:
            heads[:2] = [part * cos + _half_swapped(part) * sin for part in heads[:2]]
        q, k, v = heads
        if self.cached:
            k, v = self.key_cache.index_copy_(2, places, k), self.value_cache.index_copy_(2, places, v)
        causal = self.shape.causal and not self.cached
        grouped = self.shape.heads != self.shape.kv_heads
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return self.joined(y.transpose(1, 2).reshape(batch, tokens, -1))


def _half_swapped(x: Any) -> Any:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([-right, left], dim=-1)


def layer_of(row: LayerRow, device: str, dtype: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """The layer in evaluation mode, and its arguments."""
    torch.manual_seed(0)
    layer = Layer(row.shape, row.batch, row.cached).eval().to(device, dtype)
    first = row.cached - row.tokens if row.cached else 0
    places = torch.arange(first, first + row.tokens, device=device)
    angles = places[:, None] * 10000.0 ** -(torch.arange(0, row.shape.head, 2, device=device) / row.shape.head)
    angles = torch.cat([angles, angles], dim=-1)
    x = torch.randn(row.batch, row.tokens, row.shape.width, device=device, dtype=dtype)
    return layer, (x, places, angles.cos().to(dtype), angles.sin().to(dtype))
