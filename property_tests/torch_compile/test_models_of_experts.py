"""Eight mixtures of experts of transformers go through torch.compile whole: each op is in a segment that runs our kernels."""

from dataclasses import replace

import pytest
import torch

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Decision, graph_records
from property_tests.support.expert_models import SERVED
from property_tests.support.library_segments import library_segments
from property_tests.support.model_zoo import in_float64, make
from property_tests.support.parameters import AMPLE
from property_tests.support.torch_import import relative_error

OPTIONS = {"budget": AMPLE, "rest": "eager", "gate": "off", "cache": "off", "min_ops": 1}


def assert_whole_and_right(name: str) -> None:
    """One layer of a model is segments alone, and as accurate as torch's own."""
    case = replace(SERVED[name], sizes={**SERVED[name].sizes, "num_hidden_layers": 1})
    model, arguments = make(case, length=6)
    wide = in_float64(model, arguments)
    with torch.no_grad():
        wanted = relative_error(model(**arguments), wide)
        got = relative_error(torch.compile(model, backend=backend, options=OPTIONS)(**arguments), wide)
    assert got <= 2 * wanted + 1e-7
    [record] = graph_records()
    assert record.fallback is None and not record.outside
    assert {it.decision for it in record.segments} == {Decision.USED}, record.segments


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_every_op_of_a_model_of_experts_runs_in_our_kernels(name: str) -> None:
    assert_whole_and_right(name)


def test_every_op_of_a_model_of_experts_is_in_a_segment() -> None:
    with library_segments():
        assert_whole_and_right("gpt_oss")
