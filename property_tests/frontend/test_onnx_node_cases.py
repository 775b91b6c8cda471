"""The node cases of the onnx package: each is right, or import refuses it in one line."""

from collections import Counter
from functools import cache
from typing import Any

import pytest

pytest.importorskip("onnx")

from property_tests.support.onnx_node_cases import cases, outcome

MODULES = """
attention blackmanwindow celu clip concat cumsum einsum gather gatherelements gemm groupnormalization layernormalization
logsoftmax lpnormalization meanvariancenormalization pad reducemean rotaryembedding scatternd slice softmax split
topk trilu where
"""
RIGHT = """
attention_4d_attn_mask_4d_causal attention_3d_gqa_attn_mask blackmanwindow celu_bfloat16 clip_default_inbounds
concat_3d_axis_negative_2 cumsum_2d_axis_1 einsum_batch_diagonal gather_elements_1 gather_negative_indices gemm_all_attributes
group_normalization_epsilon l2normalization_axis_0 mvn constant_pad_negative_axes reduce_mean_keepdims_random rotary_embedding
rotary_embedding_with_interleaved_rotary_dim scatternd slice_negative_axes softmax_axis_0 softmax_large_number
logsoftmax_large_number split_variable_parts_2d_opset18
top_k_smallest tril_neg where_example
"""


@cache
def sample() -> dict[str, Any]:
    return cases(*MODULES.split())


@pytest.mark.parametrize("name", RIGHT.split())
def test_a_node_case_of_onnx_is_right(name: str) -> None:
    assert outcome(sample()[f"test_{name}"]).startswith("right")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("layer_normalization_2d_axis0", "more than its first result"),
        ("scatternd_add", "unexpected keyword argument 'reduction'"),
        ("cumsum_1d_exclusive", "unexpected keyword argument 'exclusive'"),
    ],
)
def test_a_node_case_with_an_unsupported_attribute_is_refused(name: str, reason: str) -> None:
    assert reason in outcome(sample()[f"test_{name}"])


@pytest.mark.slow
def test_every_node_case_of_onnx_is_right_or_refused() -> None:
    found = Counter(outcome(case).split(":")[0] for case in cases().values())
    assert found["right"] > 500 and found["right, part with torch"] > 150
