"""A whole layer of Llama through all stages: few kernels, every op in a block graph, right in the interpreter."""

import numpy as np
import pytest

from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.llama_layer import llama_layer

LAYERS = [
    pytest.param(32, 1, 15, id="a token after 15", marks=pytest.mark.slow),
    pytest.param(64, 16, 0, id="16 tokens", marks=pytest.mark.slow),
    pytest.param(64, 16, 15, id="16 tokens after 15", marks=pytest.mark.slow),
    pytest.param(128, 32, 63, id="32 tokens after 63", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("hidden", "tokens", "past"), LAYERS)
def test_a_whole_layer_becomes_few_right_kernels(run_program: RunProgram, hidden: int, tokens: int, past: int) -> None:
    layer = llama_layer(hidden, tokens, past)
    assert not layer.imported.outside
    [program] = layer.imported.programs
    result = optimize("layer", program, Options(device="cpu", jobs=1, cache=False, top=2))
    best = result.candidates[0]
    assert best.fused and best.kernels <= 8
    assert best.verdict.equal and best.float_check.ok and best.compile.ok
    regions = result.report.regions
    assert sum(region.in_blocks for region in regions) >= 0.9 * sum(region.ops for region in regions)
    assert all(part.proved or part.verdict == "equal" for region in regions for part in region.parts)
    assert all(region.complete or region.left_out for region in regions)
    for got, wanted in zip(run_program(best.source, layer.arrays()), layer.in_float64(), strict=True):
        assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()
