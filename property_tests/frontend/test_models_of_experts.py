"""Mixtures of experts of transformers: nothing of a layer is outside segments, and the imported model is right."""

import pytest

from property_tests.support.expert_models import EXPERTS
from property_tests.support.model_zoo import covered


@pytest.mark.slow  # the zoo has Mixtral
@pytest.mark.parametrize("name", EXPERTS)
def test_nothing_of_a_model_of_experts_is_outside(name: str) -> None:
    found, error = covered(EXPERTS[name])
    assert [it.name for it in found.outside if it.ops] == []
    assert error <= 1e-6
