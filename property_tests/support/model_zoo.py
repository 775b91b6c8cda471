"""Models for the importer: tiny configurations of `transformers` with random weights; no file, no network.

Decoders and T5 take embedded tokens, so that the program begins behind the embedding. Other encoders of text take tokens.
Models of images and of sound begin with their convolutions.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirage_eg.frontend.coverage import Coverage, coverage
from mirage_eg.frontend.torch_export import import_program
from property_tests.support.torch_import import exported, relative_error, widened

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 61,
    "max_position_embeddings": 64,
}
"""Sizes of a tiny text model, in the usual names."""

GROUPED = TEXT | {"num_key_value_heads": 2}
HEADS = GROUPED | {"head_dim": 8}
IMAGE = TEXT | {"image_size": 32, "patch_size": 8}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LEGACY = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61}  # GPT-2's names
BART = {
    **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("attention_heads", 4), ("ffn_dim", 48))},
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "vocab_size": 61,
    "max_position_embeddings": 64,
}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
WHISPER = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "num_mel_bins": 8}
SOUND = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16}


@dataclass(frozen=True, slots=True)
class ModelCase:
    """How a model is made: its classes `NAMEConfig` and `NAMEsuffix` of `transformers`, its sizes, and its input.

    `takes` is embeds, ids, pixels, mel or sound; `attention` the implementation that transformers chooses by that name.
    """

    name: str
    sizes: Mapping[str, Any]
    takes: str = "embeds"
    suffix: str = "Model"
    attention: str = "eager"


DESIGNED: Mapping[str, ModelCase] = {
    "llama": ModelCase("Llama", HEADS),
    "llama_sdpa": ModelCase("Llama", HEADS, attention="sdpa"),
    "qwen3": ModelCase("Qwen3", HEADS),
    "gemma": ModelCase("Gemma", HEADS),
    "gemma2": ModelCase("Gemma2", HEADS | {"sliding_window": 4}),
    "gpt2": ModelCase("GPT2", LEGACY),
    "bert": ModelCase("Bert", TEXT),
    "t5": ModelCase(
        "T5", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61}, suffix="EncoderModel"
    ),
    "vit": ModelCase("ViT", IMAGE, "pixels"),
    "whisper": ModelCase(
        "Whisper", WHISPER | {"max_source_positions": 16, "vocab_size": 61, "pad_token_id": 0}, "mel", "Encoder"
    ),
    "mixtral": ModelCase("Mixtral", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""The models that the importer was written for."""

OTHERS: Mapping[str, ModelCase] = {
    "albert": ModelCase("Albert", TEXT | {"embedding_size": 16}, "ids"),
    "bart": ModelCase("Bart", BART | SPECIAL, "ids"),
    "beit": ModelCase("Beit", IMAGE, "pixels"),
    "bloom": ModelCase("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61}),
    "clip_text": ModelCase("CLIPText", TEXT | SPECIAL, "ids"),
    "clip_vision": ModelCase("CLIPVision", IMAGE, "pixels"),
    "cohere": ModelCase("Cohere", GROUPED),
    "convnext": ModelCase("ConvNext", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, "pixels"),
    "deberta_v2": ModelCase("DebertaV2", TEXT, "ids"),
    "deepseek_v3": ModelCase("DeepseekV3", TEXT | LATENT | {"num_key_value_heads": 4, "first_k_dense_replace": 2}),
    "deit": ModelCase("DeiT", IMAGE, "pixels"),
    "dinov2": ModelCase("Dinov2", IMAGE, "pixels"),
    "distilbert": ModelCase("DistilBert", {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 61}, "ids"),
    "electra": ModelCase("Electra", TEXT | {"embedding_size": 16}, "ids"),
    "falcon": ModelCase("Falcon", TEXT),
    "gemma3": ModelCase("Gemma3Text", HEADS | {"sliding_window": 4}),
    "glm": ModelCase("Glm", HEADS | SPECIAL),
    "gpt_neox": ModelCase("GPTNeoX", TEXT),
    "gptj": ModelCase("GPTJ", LEGACY | {"rotary_dim": 4, "n_positions": 64}),
    "granite": ModelCase("Granite", GROUPED),
    "mamba": ModelCase("Mamba", {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 61, "state_size": 4}),
    "mistral": ModelCase("Mistral", GROUPED | {"sliding_window": 4}, attention="sdpa"),
    "mpt": ModelCase("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 61}),
    "olmo2": ModelCase("Olmo2", GROUPED | SPECIAL, attention="sdpa"),
    "opt": ModelCase("OPT", TEXT | SPECIAL | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi": ModelCase("Phi", TEXT),
    "phi3": ModelCase("Phi3", GROUPED | SPECIAL, attention="sdpa"),
    "qwen2": ModelCase("Qwen2", GROUPED, attention="sdpa"),
    "resnet": ModelCase(
        "ResNet", {"hidden_sizes": [16, 32], "depths": [1, 1], "embedding_size": 16, "layer_type": "basic"}, "pixels"
    ),
    "roberta": ModelCase("Roberta", TEXT | SPECIAL, "ids"),
    "siglip": ModelCase("SiglipVision", IMAGE, "pixels", attention="sdpa"),
    "smollm3": ModelCase("SmolLM3", GROUPED | SPECIAL),
    "stablelm": ModelCase("StableLm", GROUPED),
    "starcoder2": ModelCase("Starcoder2", GROUPED),
    "swin": ModelCase(
        "Swin",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        "pixels",
    ),
    "wav2vec2": ModelCase("Wav2Vec2", TEXT | SOUND | {"num_conv_pos_embedding_groups": 4}, "sound"),
}
"""Models that the importer was not written for."""

MODELS: Mapping[str, ModelCase] = {**DESIGNED, **OTHERS}


def make(case: ModelCase, length: int = 10, batch: int = 1, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """The model in evaluation mode with random weights, and its arguments by name."""
    import torch
    import transformers
    from transformers.models.whisper import modeling_whisper

    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    config = getattr(transformers, f"{case.name}Config")(**case.sizes, attn_implementation=case.attention)
    config.use_cache = False  # a cache of keys and values is no tensor
    name = f"{case.name}{case.suffix}"
    model = getattr(transformers if hasattr(transformers, name) else modeling_whisper, name)(config).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    width = next((case.sizes[name] for name in ("hidden_size", "d_model", "n_embd", "dim") if name in case.sizes), 0)
    match case.takes:
        case "embeds":
            return model, {"inputs_embeds": torch.randn(batch, length, width, generator=generator)}
        case "ids":
            return model, {"input_ids": torch.randint(3, case.sizes["vocab_size"], (batch, length), generator=generator)}
        case "pixels":
            size = case.sizes.get("image_size", 32)
            return model, {"pixel_values": torch.randn(batch, 3, size, size, generator=generator)}
        case "mel":
            frames = 2 * case.sizes["max_source_positions"]
            return model, {"input_features": torch.randn(batch, case.sizes["num_mel_bins"], frames, generator=generator)}
        case "sound":
            return model, {"input_values": torch.randn(batch, 80 * length, generator=generator)}
        case other:
            raise AssertionError(other)


def in_float64(model: Any, arguments: Mapping[str, Any]) -> Any:
    """The results of a model in float64."""
    import torch

    wide = copy.deepcopy(model).double()
    wide.config._experts_implementation = "eager"  # torch has no grouped product of float64
    with torch.no_grad():
        return wide(**widened(dict(arguments)))


def covered(case: ModelCase) -> tuple[Coverage, float]:
    """What of a model is imported, and the relative error of the imported model in float32 against the model in float64."""
    model, arguments = make(case)
    it = import_program(exported(model, **arguments))
    return coverage(it), relative_error(it.run(**arguments), in_float64(model, arguments))
