"""The suite decode: a step of a decoder of transformers, one token a sequence, keys and values in a StaticCache of 1,024.

Four layers with a vocabulary of 32,000 words stand for a model whose layers are all alike; Llama 3.2 1B is there whole, too.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch

from mirage_eg.lab.bench.suite_model import Built, SuiteModel, made_in
from mirage_eg.lab.bench.transformers_models import LLAMA_1B, config_of, words

_CACHED, _PLACE = 1024, 900  # the length of the cache, and the position of the token
_SMALL_CACHED, _SMALL_PLACE = 32, 20


class DecodeStep(torch.nn.Module):  # type: ignore[misc]
    """A decoder with its cache."""

    def __init__(self, model: Any, cache: Any) -> None:
        super().__init__()
        name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"  # before transformers 5.24
        self.model, self.cached = model, {name: cache}

    def forward(self, token: Any, place: Any) -> Any:
        """The logits of the next token."""
        return self.model(input_ids=token, position_ids=place, use_cache=True, **self.cached).logits


def _decoder(name: str, sizes: Mapping[str, Any], batch: int = 1) -> SuiteModel:
    """A causal model of transformers, by the beginning of its classes' names."""

    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        import transformers

        transformers.logging.set_verbosity_error()
        config = config_of(getattr(transformers, f"{name}Config"), sizes, small)
        cached, place = (_SMALL_CACHED, _SMALL_PLACE) if small else (_CACHED, _PLACE)
        cache = transformers.StaticCache(config=config, max_cache_len=cached)
        model = made_in(dtype, lambda: getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config))
        arguments = words(config, batch, 1), torch.full((batch, 1), place)
        step = DecodeStep(model, cache)
        with torch.no_grad():
            step(*arguments)  # it makes the tensors of the cache
        kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        for tensor in kept:
            tensor.normal_()
        return Built(step.eval(), arguments, prepare=_Lengths(cache, place), state=kept)

    return SuiteModel(batch, build, "transformers")


class _Lengths:
    """Puts back the numbers of tokens that the layers of a cache count."""

    def __init__(self, cache: Any, place: int) -> None:
        counts = [getattr(layer, "cumulative_length", None) for layer in cache.layers]
        self._tensors = [it for it in counts if isinstance(it, torch.Tensor)]
        self._wanted = [torch.full_like(tensor, place) for tensor in self._tensors]
        names = ("cumulative_length", "cumulative_length_int")
        self._counts = [(layer, name) for layer in cache.layers for name in names if type(getattr(layer, name, None)) is int]
        self._place = place

    def __call__(self) -> None:
        """One copy of all tensors, which a CUDA graph repeats."""
        if self._tensors:
            torch._foreach_copy_(self._tensors, self._wanted)
        for layer, name in self._counts:
            setattr(layer, name, self._place)


_FOUR = {"num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 4096}


def _sizes(width: int, inner: int, heads: int, kv_heads: int | None = None, head: int | None = None, **others: Any) -> Any:
    kept = {"num_key_value_heads": kv_heads, "head_dim": head}
    found = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads}
    return _FOUR | found | {name: size for name, size in kept.items() if size is not None} | others


DECODE: Mapping[str, SuiteModel] = {
    "Llama-3.2-1B x4": _decoder("Llama", _sizes(2048, 8192, 32, 8)),
    "Gemma-3-4B x4": _decoder("Gemma3Text", _sizes(2560, 10240, 8, 4, 256, layer_types=["full_attention"] * 4)),
    "Mistral-7B x4 b=8": _decoder("Mistral", _sizes(4096, 14336, 32, 8, sliding_window=None), 8),
    "Qwen3-4B x4": _decoder("Qwen3", _sizes(2560, 9728, 32, 8, 128)),
    "Qwen2.5-1.5B x4": _decoder("Qwen2", _sizes(1536, 8960, 12, 2)),
    "OLMo-2-7B x4": _decoder("Olmo2", _sizes(4096, 11008, 32)),
    "phi-2 x4": _decoder("Phi", _sizes(2560, 10240, 32, partial_rotary_factor=0.4)),
    "Llama-3.2-1B": _decoder("Llama", LLAMA_1B),
}
