"""A whole layer of Llama from `transformers`: rotary embedding, mask, grouped queries, and a given cache of keys and values."""

from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from mirage_eg.frontend.imported import Imported, InputKind
from mirage_eg.frontend.torch_export import import_program
from property_tests.support.torch_import import exported, widened

_CACHE = (
    "cache" if "cache" in signature(LlamaDecoderLayer.forward).parameters else "past_key_values"
)  # before transformers 5.24


class _Cache:
    """Keys and values of earlier tokens, as tensors."""

    def __init__(self, keys: Any, values: Any) -> None:
        self.keys, self.values = keys, values

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """The keys and values of all tokens."""
        self.keys, self.values = torch.cat([self.keys, keys], -2), torch.cat([self.values, values], -2)
        return self.keys, self.values


class _Layers(torch.nn.Module):
    """Layers of Llama; with a cache for each the results are all keys and values, and the tokens last."""

    def __init__(self, config: LlamaConfig, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(LlamaDecoderLayer(config, 0) for _ in range(count))
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Any, mask: Any, *caches: Any) -> Any:
        joined = []
        for number, layer in enumerate(self.layers):
            cache = _Cache(*caches[2 * number : 2 * number + 2]) if caches else None
            past = caches[0].shape[2] if caches else 0
            positions = torch.arange(past, past + x.shape[1])[None]
            angles = self.rotary(x, positions)
            x = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=angles, **{_CACHE: cache})
            joined += [] if cache is None else [cache.keys, cache.values]
        return (*joined, x)


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """The model, its arguments, and the imported program."""

    model: Any
    arguments: tuple[Any, ...]
    imported: Imported

    def arrays(self) -> list[Any]:
        """The inputs of the program."""
        [segment] = self.imported.segments
        names = ("x", "mask", *(f"caches_{number}" for number in range(len(self.arguments) - 2)))
        activations = dict(zip(names, self.arguments, strict=True))
        return [
            activations[name].numpy() if kind is InputKind.ACTIVATION else np.ascontiguousarray(self.imported.array(name))
            for name, kind in zip(segment.program.input_names, segment.kinds, strict=True)
        ]

    def in_float64(self) -> list[Any]:
        """The results of the model in float64."""
        with torch.no_grad():
            return [result.numpy() for result in self.model.double()(*widened(self.arguments))]


def llama_layer(hidden: int = 64, tokens: int = 16, past: int = 15, heads: int = 4, layers: int = 1) -> LlamaLayer:
    """A layer of random weights in float32 with half as many heads of keys; `past`: tokens in the cache, 0 for no cache."""
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_attention_heads": heads}
    config = LlamaConfig(**sizes, num_key_value_heads=heads // 2, attn_implementation="eager")
    model = _Layers(config, layers).eval()
    allowed = torch.tril(torch.ones(tokens, past + tokens, dtype=torch.bool), past)[None, None]
    mask = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    cache = (1, heads // 2, past, hidden // heads)
    caches = [torch.randn(cache) for _ in range(2 * layers)] if past else []
    arguments = (torch.randn(1, tokens, hidden), mask, *caches)
    return LlamaLayer(model, arguments, import_program(exported(model, *arguments)))
