"""Tiny mixtures of experts of transformers."""

from collections.abc import Mapping

from property_tests.support.model_zoo import DESIGNED, GROUPED, HEADS, LATENT, SPECIAL, TEXT, ModelCase

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 0}
_GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}
_JAMBA = {"attn_layer_offset": 0, "attn_layer_period": 1, "expert_layer_offset": 0, "expert_layer_period": 1}

SERVED: Mapping[str, ModelCase] = {
    "mixtral": DESIGNED["mixtral"],
    "qwen3_moe": ModelCase("Qwen3Moe", HEADS | _EXPERTS),
    "gpt_oss": ModelCase("GptOss", HEADS | _LOCAL | {"sliding_window": 4}),
    "deepseek_v3": ModelCase("DeepseekV3", TEXT | LATENT | _ROUTED | _GROUPS | {"num_key_value_heads": 4}),
    "jamba": ModelCase("Jamba", GROUPED | SPECIAL | _EXPERTS | _JAMBA | {"use_mamba_kernels": False}),
    "granitemoe": ModelCase("GraniteMoe", GROUPED | SPECIAL | _LOCAL),
    "olmoe": ModelCase("Olmoe", HEADS | SPECIAL | _EXPERTS),
    "phimoe": ModelCase("Phimoe", GROUPED | SPECIAL | _LOCAL),
}
"""Models that go through torch.compile."""

EXPERTS: Mapping[str, ModelCase] = {
    **{name: case for name, case in SERVED.items() if name not in DESIGNED},
    "qwen2_moe": ModelCase("Qwen2Moe", GROUPED | _EXPERTS | {"shared_expert_intermediate_size": 24}),
    "glm4_moe": ModelCase("Glm4Moe", HEADS | SPECIAL | _ROUTED),
    "deepseek_v2": ModelCase("DeepseekV2", TEXT | LATENT | _ROUTED | {"num_key_value_heads": 4}),
    "llama4": ModelCase("Llama4Text", HEADS | SPECIAL | _LOCAL | {"intermediate_size_mlp": 48, "attention_chunk_size": 8}),
    "minimax_m2": ModelCase("MiniMaxM2", HEADS | SPECIAL | _LOCAL | {"rotary_dim": 8}),
}
"""Models beside those of the zoo."""
