"""Mixtures of experts of transformers: nothing of a layer is outside segments, and the imported model is right."""

from collections.abc import Mapping

import pytest

from property_tests.support.model_zoo import GROUPED, HEADS, LATENT, SPECIAL, TEXT, ModelCase, covered

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 0}
_GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}
_JAMBA = {"attn_layer_offset": 0, "attn_layer_period": 1, "expert_layer_offset": 0, "expert_layer_period": 1}

MODELS: Mapping[str, ModelCase] = {
    "granitemoe": ModelCase("GraniteMoe", GROUPED | SPECIAL | _LOCAL),
    "olmoe": ModelCase("Olmoe", HEADS | SPECIAL | _EXPERTS),
    "phimoe": ModelCase("Phimoe", GROUPED | SPECIAL | _LOCAL),
    "qwen2_moe": ModelCase("Qwen2Moe", GROUPED | _EXPERTS | {"shared_expert_intermediate_size": 24}),
    "qwen3_moe": ModelCase("Qwen3Moe", HEADS | _EXPERTS),
    "jamba": ModelCase("Jamba", GROUPED | SPECIAL | _EXPERTS | _JAMBA | {"use_mamba_kernels": False}),
    "glm4_moe": ModelCase("Glm4Moe", HEADS | SPECIAL | _ROUTED),
    "deepseek_v3": ModelCase("DeepseekV3", TEXT | LATENT | _ROUTED | _GROUPS | {"num_key_value_heads": 4}),
    "gpt_oss": ModelCase("GptOss", HEADS | _LOCAL | {"sliding_window": 4}),
    "minimax_m2": ModelCase("MiniMaxM2", HEADS | SPECIAL | _LOCAL | {"rotary_dim": 8}),
}


@pytest.mark.slow  # the zoo has Mixtral
@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_a_model_of_experts_is_outside(name: str) -> None:
    found, error = covered(MODELS[name])
    assert [it.name for it in found.outside if it.ops] == []
    assert error <= 1e-6
