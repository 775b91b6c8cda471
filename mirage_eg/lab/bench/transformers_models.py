"""The suite huggingface of PyTorch's dashboard: models of transformers from their configurations, with random weights.

Lists, batches and lengths are those of benchmarks/dynamo/huggingface.py in PyTorch's repository; the classes' defaults are the
published models. Causal models run a prompt; the suite decode has their steps.
"""

from collections.abc import Mapping
from typing import Any

import torch

from mirage_eg.lab.bench.suite_model import Built, SuiteModel, made_in

SMALL: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim", "pooler_hidden_size"), 64),
    **dict.fromkeys(("embedding_size", "true_hidden_size", "intra_bottleneck_size"), 32),
    **dict.fromkeys(
        ("intermediate_size", "hidden_dim", "ffn_dim", "d_ff", "d_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 96
    ),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("head_dim", "d_head", "d_kv"), 16),
    "num_key_value_heads": 2,
    "max_source_positions": 16,
    "attention_window": 8,
    "vocab_size": 97,
}
"""Sizes of small models, by the names that configurations have for them."""

_SMALL_TOKENS = 16
_FIRST_WORD = 4  # the words before it have a meaning: padding, begin, end, unknown


def config_of(kind: Any, sizes: Mapping[str, Any], small: bool) -> Any:
    """A configuration of a class of transformers."""
    chosen = dict(sizes)
    if small:
        known = kind().to_dict()
        chosen |= {name: size for name, size in SMALL.items() if name in known}
        if "layer_types" in sizes:
            chosen["layer_types"] = sizes["layer_types"][: chosen["num_hidden_layers"]]
    return kind(**chosen)


def words(config: Any, batch: int, tokens: int) -> Any:
    """Random tokens."""
    return torch.randint(_FIRST_WORD, config.vocab_size, (batch, tokens))


def _text(
    name: str,
    batch: int,
    tokens: int,
    sizes: Mapping[str, Any] | None = None,
    *,
    decodes: bool = False,
    dtype: str | None = None,
) -> SuiteModel:
    """A model of tokens; with `decodes` its decoder has the same ones."""

    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        import transformers

        transformers.logging.set_verbosity_error()
        kind = getattr(transformers, name)
        config = config_of(kind.config_class, sizes or {}, small)
        config.use_cache = False  # the dashboard's models have none
        ids = words(config, batch, _SMALL_TOKENS if small else tokens)
        keywords = {"input_ids": ids} | ({"decoder_input_ids": ids} if decodes else {})
        return Built(made_in(dtype, lambda: kind(config)), keywords=keywords)

    return SuiteModel(batch, build, "transformers", dtype)


def _whisper(batch: int, small: bool, dtype: torch.dtype) -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = config_of(WhisperConfig, {"pad_token_id": 0} if small else {}, small)
    config.use_cache = False
    sound = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions).to(dtype)
    ids = words(config, batch, _SMALL_TOKENS if small else 128)
    model = made_in(dtype, lambda: WhisperForConditionalGeneration(config))
    return Built(model, keywords={"input_features": sound, "decoder_input_ids": ids})


LLAMA_1B: Mapping[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
_QWEN3_600M = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
HUGGINGFACE: Mapping[str, SuiteModel] = {
    "AlbertForMaskedLM": _text("AlbertForMaskedLM", 8, 512),
    "AllenaiLongformerBase": _text("LongformerForMaskedLM", 8, 1024, {"max_position_embeddings": 4098}),
    "BartForCausalLM": _text("BartForCausalLM", 8, 1024),
    "BertForMaskedLM": _text("BertForMaskedLM", 32, 512),
    "BlenderbotForCausalLM": _text("BlenderbotForCausalLM", 32, 128),
    "DebertaV2ForMaskedLM": _text("DebertaV2ForMaskedLM", 8, 512),
    "DistilBertForMaskedLM": _text("DistilBertForMaskedLM", 256, 128),
    "DistillGPT2": _text("GPT2LMHeadModel", 32, 512, {"n_layer": 6}),
    "ElectraForCausalLM": _text("ElectraForCausalLM", 64, 512),
    "GPT2ForSequenceClassification": _text("GPT2ForSequenceClassification", 8, 1024, {"pad_token_id": 0}),
    "GoogleFnet": _text("FNetForMaskedLM", 32, 512, dtype="float32"),  # torch has no Fourier transform of 16 bits
    "LayoutLMForMaskedLM": _text("LayoutLMForMaskedLM", 32, 512),
    "M2M100ForConditionalGeneration": _text("M2M100ForConditionalGeneration", 64, 128, decodes=True),
    "MBartForCausalLM": _text("MBartForCausalLM", 8, 1024),
    "MT5ForConditionalGeneration": _text("MT5ForConditionalGeneration", 32, 128, decodes=True),
    "MegatronBertForCausalLM": _text("MegatronBertForCausalLM", 16, 512),
    "MobileBertForMaskedLM": _text("MobileBertForMaskedLM", 256, 128),
    "OPTForCausalLM": _text("OPTForCausalLM", 4, 2048),
    "PLBartForCausalLM": _text("PLBartForCausalLM", 16, 1024),
    "PegasusForCausalLM": _text("PegasusForCausalLM", 128, 128),
    "RobertaForCausalLM": _text("RobertaForCausalLM", 32, 512, {"max_position_embeddings": 514}),  # they begin at 2
    "T5ForConditionalGeneration": _text("T5ForConditionalGeneration", 8, 1024, decodes=True),
    "T5Small": _text("T5ForConditionalGeneration", 8, 1024, decodes=True),
    "TrOCRForCausalLM": _text("TrOCRForCausalLM", 64, 256),
    "XGLMForCausalLM": _text("XGLMForCausalLM", 32, 128),
    "XLNetLMHeadModel": _text("XLNetLMHeadModel", 16, 512),
    "YituTechConvBert": _text("ConvBertForMaskedLM", 32, 512),
    "Qwen3-0.6B": _text("Qwen3ForCausalLM", 8, 1000, _QWEN3_600M),
    "gemma-2-2b": _text("Gemma2ForCausalLM", 8, 1000),
    "Llama-3.2-1B": _text("LlamaForCausalLM", 8, 1000, LLAMA_1B),
    "whisper-tiny": SuiteModel(8, _whisper, "transformers"),
}
