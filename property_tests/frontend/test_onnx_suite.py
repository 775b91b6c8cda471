"""ONNX's conformance suite: none of its cases is wrong or ends in an exception, and few are refused."""

from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("onnx")

from property_tests.support.onnx_cases import Outcome, cases, data_sets, model_of, outcome, takes_arrays, with_constants
from property_tests.support.parameters import few

TENTH, PARTS = 10, 24  # the names of the cases, whose making takes seconds, are no parameters
RIGHT = ("inside", "outside", "constant")
REFUSED = "has no extent; give it, for example dims="  # of a model whose inputs have symbolic dims
INSIDE = """
attention_4d_attn_mask_4d_causal attention_3d_gqa_attn_mask attention_4d_with_past_and_present celu_bfloat16
gather_elements_1 gemm_all_attributes group_normalization_epsilon l2normalization_axis_0 mvn rotary_embedding
rotary_embedding_with_interleaved_rotary_dim softmax_axis_0 softmax_large_number logsoftmax_large_number where_example
layer_normalization_2d_axis0 lrn PReLU_2d operator_add_broadcast BatchNorm3d_eval Linear
"""
RESIZED = """
upsample_scales_linear upsample_scales_linear_half_pixel_symmetric upsample_scales_cubic_A_n0p5_exclude_outside
downsample_scales_cubic_align_corners downsample_sizes_linear_pytorch_half_pixel
"""


def tenth(of: int) -> list[Any]:
    """The cases that are the first of ten, second of ten…"""
    return [case for place, case in enumerate(cases().values()) if place % TENTH == of]


def check(some: Iterable[Any], kept: int | None = None) -> None:
    found = {case.name: outcome(case, kept) for case in some}
    assert found and not {name: it for name, it in found.items() if not is_right(it)}


def is_right(found: Outcome) -> bool:
    return found.result in RIGHT or (found.result == "refused" and REFUSED in found.reason)


@pytest.mark.parametrize("part", few(range(PARTS), 3))
def test_a_tenth_of_the_cases_of_onnx_is_right(part: int) -> None:
    check(tenth(0)[part::PARTS])


@pytest.mark.slow
@pytest.mark.parametrize("of", range(1, TENTH))
def test_the_other_cases_of_onnx_are_right(of: int) -> None:
    check(tenth(of))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1])
def test_a_case_whose_inputs_are_initializers_is_right(kept: int) -> None:
    check(filter(takes_arrays, tenth(0)), kept)


@pytest.mark.parametrize("name", INSIDE.split())
def test_a_case_of_an_everyday_operator_is_inside_programs(name: str) -> None:
    assert outcome(cases()[f"test_{name}"]).result == "inside"


@pytest.mark.parametrize("name", RESIZED.split())
def test_a_case_of_resizing_by_constants_is_inside_programs(name: str) -> None:
    assert outcome(cases()[f"test_resize_{name}"], 1).result == "inside"


def test_an_initializer_of_another_value_makes_a_case_wrong() -> None:
    case = cases()["test_add"]
    model, [(given, wanted), *_] = model_of(case), list(data_sets(case))
    changed = with_constants(model, [given[0], given[1] + 1], 1)
    case = type(case)(**{**vars(case), "model": changed, "data_sets": [(given[:1], wanted)]})
    assert outcome(case).result == "wrong"
