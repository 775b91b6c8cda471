"""ONNX's conformance suite: none of its cases is wrong or ends in an exception, and few are refused."""

import pytest

pytest.importorskip("onnx")

from property_tests.support.onnx_cases import cases, data_sets, model_of, outcome, takes_arrays, with_constants

TENTH = sorted(cases())[::10]
RIGHT = ("inside", "outside", "constant")
REFUSED = "has no extent; give it, for example dims="  # of a model whose inputs have symbolic dims
INSIDE = """
attention_4d_attn_mask_4d_causal attention_3d_gqa_attn_mask attention_4d_with_past_and_present celu_bfloat16
gather_elements_1 gemm_all_attributes group_normalization_epsilon l2normalization_axis_0 mvn rotary_embedding
rotary_embedding_with_interleaved_rotary_dim softmax_axis_0 softmax_large_number logsoftmax_large_number where_example
layer_normalization_2d_axis0 lrn PReLU_2d operator_add_broadcast
"""


def check(name: str, kept: int | None = None) -> None:
    found = outcome(cases()[name], kept)
    assert found.result in RIGHT or (found.result == "refused" and REFUSED in found.reason), found


@pytest.mark.parametrize("name", TENTH)
def test_a_tenth_of_the_cases_of_onnx_is_right(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cases() if name not in TENTH])
def test_the_other_cases_of_onnx_are_right(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("name", TENTH)
def test_a_case_whose_inputs_are_initializers_is_right(name: str, kept: int) -> None:
    if takes_arrays(cases()[name]):
        check(name, kept)


@pytest.mark.parametrize("name", INSIDE.split())
def test_a_case_of_an_everyday_operator_is_inside_programs(name: str) -> None:
    assert outcome(cases()[f"test_{name}"]).result == "inside"


def test_an_initializer_of_another_value_makes_a_case_wrong() -> None:
    case = cases()["test_add"]
    model, [(given, wanted), *_] = model_of(case), list(data_sets(case))
    changed = with_constants(model, [given[0], given[1] + 1], 1)
    case = type(case)(**{**vars(case), "model": changed, "data_sets": [(given[:1], wanted)]})
    assert outcome(case).result == "wrong"
