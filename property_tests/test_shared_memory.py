"""The model of shared memory against what the compiler reports; benchmarks/shared_memory.py compares many more."""

import pytest

from mirage_eg.backends.compile import compile_source
from mirage_eg.backends.emit import Schedule, emit
from mirage_eg.instantiate import TileLimits, blocks_of, fits
from mirage_eg.shared_memory import shared_memory
from property_tests.test_emit import gated_mlp


@pytest.mark.parametrize(("rows", "loop", "warps", "stages"), [(64, 16, 4, 3), (64, 16, 8, 2), (16, 16, 4, 4), (64, 32, 2, 4)])
def test_the_model_is_within_a_tenth_of_the_compiler(rows: int, loop: int, warps: int, stages: int) -> None:
    """wgmma and mma, several depths."""
    graph = gated_mlp("float16", rows, 1024, 512, 4, loop).mugraph
    [record] = compile_source(emit(graph, schedule=Schedule(num_warps=warps, num_stages=stages)), "sm_90")
    [block] = blocks_of(graph)
    assert record.shared_memory is not None
    assert record.shared_memory > 16 * 1024
    assert shared_memory(block, stages, warps) == pytest.approx(record.shared_memory, rel=0.1)


def test_what_needs_more_than_a_block_has_does_not_fit() -> None:
    [small], [large] = (blocks_of(gated_mlp("float16", 64, 4096, 512, 4, loop).mugraph) for loop in (64, 4))
    assert fits(small, TileLimits())
    assert shared_memory(large, 2) > TileLimits().shared_memory
    assert not fits(large, TileLimits())
