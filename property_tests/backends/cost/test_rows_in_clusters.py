"""Rows that thread blocks of a cluster share are read and stored in turn: memory takes longer than a copy."""

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph


@pytest.mark.parametrize(
    ("rows", "row", "dtype", "cluster", "us"),
    [
        (7168, 262_144, "float32", 16, 5987),  # KernelBench's problem 34 of level 1, Triton 3.6
        (7168, 262_144, "float16", 16, 2603),
        (1024, 131_072, "float16", 8, 183.5),  # RMSNorm in docs/experiments/clusters.md, Triton 3.9
    ],
)
def test_a_norm_takes_the_predicted_time(rows: int, row: int, dtype: str, cluster: int, us: float) -> None:
    g, block = new_kernel_graph(), new_threadblock_graph((rows,), (256, 1, 1), cluster=cluster)
    x = g.new_input((rows, row), dtype)
    tile = block.new_input(x, (0,))
    centred = tile - block.mean(tile, 1) if rows > 1024 else tile
    block.new_output(centred / block.sqrt(block.shift(block.mean(block.square(centred), 1), 1e-5)), (0,))
    [result] = g.customized([x], block)
    g.mark_output(result)
    [cost] = predict(g.graph(), DEVICES["H200"])
    assert 0.8 < cost.us / us < 1.25
