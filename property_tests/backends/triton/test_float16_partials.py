"""Partial results in float16 are right at any magnitude, for each row has its scale; and half the bytes."""

from importlib import metadata

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton import block_kernel as block
from mirage_eg.backends.triton.compile import compile_source, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.float16_partials import ScaledHalfOutput
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.tiles import Tile
from mirage_eg.backends.triton.writer import Writer
from property_tests.support.hand_written import (
    HAND_WRITTEN,
    ROUNDING,
    attention,
    far_attention,
    inputs_of,
    split_attention,
    worst,
)

SPLIT = [name for name in HAND_WRITTEN if name.startswith("attention, split")]
HALVES = Schedule(half_partials=True)


@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 3e4])
def test_values_of_any_magnitude_come_back(run_program: RunProgram, magnitude: float) -> None:
    """All scores equal: the sums of exponentials times V are as large as they get; small ones are subnormal in float16."""
    graphs = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 16)
    q, k, v = inputs_of(graphs.program)
    arrays = [0 * q, k, magnitude * np.abs(v) / np.abs(v).max()]
    got = run_program(emit(graphs.mugraph, schedule=HALVES), arrays)
    given = [array.astype(np.float16).astype(np.float64) for array in arrays]
    assert worst(got, evaluate(graphs.program, given, FloatAlgebra())) < 4 * ROUNDING["float16"]


def test_without_scales_large_ones_overflow(run_program: RunProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(writer: Writer, tile: Tile, half: ScaledHalfOutput) -> tuple[Tile, Tile]:
        kept = [dim != half.dim for dim in range(len(tile.shape))]
        shape, padded = (tuple(np.where(kept, extents, 1).tolist()) for extents in (tile.shape, tile.padded))
        ones = f"tl.full({tuple(extent for extent in padded if extent > 1)}, 1.0, tl.float32)"
        return tile, Tile(ones, tile.dtype, shape, padded)

    monkeypatch.setattr(block, "write_scaled", plain)
    graphs = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 16)
    q, k, v = inputs_of(graphs.program)
    for magnitude, right in ((1.0, True), (3e4, False)):
        arrays = [0 * q, k, magnitude * np.abs(v) / np.abs(v).max()]
        with np.errstate(all="ignore"):
            got = run_program(emit(graphs.mugraph, schedule=HALVES), arrays)
        assert (worst(got, evaluate(graphs.program, arrays, FloatAlgebra())) < 4 * ROUNDING["float16"]) is right


@pytest.mark.parametrize("name", SPLIT)
def test_scores_of_thousands_are_as_safe_as_before(run_program: RunProgram, name: str) -> None:
    graphs = HAND_WRITTEN[name]("float16")
    arrays = inputs_of(graphs.program, scale=40.0)
    with np.errstate(all="ignore"):
        assert (
            worst(run_program(emit(graphs.mugraph, schedule=HALVES), arrays), [far_attention(*arrays)])
            < 4 * ROUNDING["float16"]
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_two_kernels_share_takes_half_the_bytes(dtype: str) -> None:
    mugraph = split_attention(dtype, 2, 32, 16, 64, 16, 4, 1, 8).mugraph
    kinds = []
    for schedule in (Schedule(), HALVES):
        with loaded(emit(mugraph, schedule=schedule)) as module:
            kinds.append({name: kind for name, (_, kind, _) in module.BUFFERS.items()})
    plain, halved = kinds
    assert plain["t3"] == "float32" and halved["t3"] == "float16" and halved["t3_scale"] == "float32"
    assert halved["t4"] == "float32"  # one number a row needs no scale


@pytest.mark.parametrize("name", [name for name in HAND_WRITTEN if name not in SPLIT])
def test_nothing_else_changes(name: str) -> None:
    graph = HAND_WRITTEN[name]("float16").mugraph
    assert emit(graph, schedule=HALVES) == emit(graph)


def test_float32_programs_keep_their_precision() -> None:
    graph = split_attention("float32", 2, 32, 16, 64, 16, 4, 1, 8).mugraph
    assert emit(graph, schedule=HALVES) == emit(graph)


NO_PASS = pytest.mark.skipif(metadata.version("triton").startswith("3.7."), reason="a pass of Triton 3.7 fails on it")


@pytest.mark.parametrize("target", ["sm_80", "sm_90", pytest.param("sm_100", marks=NO_PASS), "gfx942"])
def test_they_compile_for_every_target(target: str) -> None:
    graph = split_attention("float16", 2, 64, 64, 256, 64, 4, 1, 32).mugraph
    for record in compile_source(emit(graph, schedule=Schedule(half_partials=True, use_reciprocal=True)), target):
        assert record.ok, record


def test_a_division_by_what_is_broadcast_is_a_multiplication() -> None:
    graph = attention("float16", 2, 32, 16, 64, 16, 4).mugraph
    plain, fast = (emit(graph, schedule=Schedule(use_reciprocal=on)) for on in (False, True))
    assert "acc / acc_2[:, None]" in plain and "acc * (1.0 / acc_2)[:, None]" in fast
