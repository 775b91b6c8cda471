"""Rotations by complex numbers, and experts of any number of tokens, go through torch.compile without an op outside."""

import torch

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Decision, graph_records
from property_tests.frontend.test_torch_complex import ANGLES, X, llama4
from property_tests.frontend.test_torch_experts import SCORES, TOKENS, W, layer
from property_tests.frontend.test_torch_experts import X as ROWS
from property_tests.support.library_segments import library_segments
from property_tests.support.torch_import import relative_error

OPTIONS = {"gate": "off", "cache": "off", "rest": "eager"}


def test_a_compiled_rotation_is_one_segment() -> None:
    with library_segments(), torch.no_grad():
        got = torch.compile(llama4, backend=backend, options=OPTIONS, dynamic=False)(X, ANGLES)
    assert relative_error(got, llama4(X, ANGLES)) <= 1e-6
    [record] = graph_records()
    assert not record.outside and len(record.segments) == 1


def test_a_compiled_layer_of_experts_serves_any_number_of_tokens() -> None:
    compiled = torch.compile(layer, backend=backend, options=OPTIONS | {"min_ops": 1000}, dynamic=True)
    for tokens in (TOKENS, TOKENS + 3):
        x, scores = ROWS.repeat(2, 1)[:tokens], SCORES.repeat(2, 1)[:tokens]
        torch.testing.assert_close(compiled(x, scores, W), layer(x, scores, W), rtol=1e-5, atol=1e-5)
    [record] = graph_records()
    assert not record.outside and {it.decision for it in record.segments} == {Decision.SMALL}
