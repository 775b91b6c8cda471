"""The cost of products with vectors, by what a block or an iteration loads at once."""

from mirage_eg.backends.cost.block_cost import BlockWork, block_cost
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.registers import resident_blocks

MEASURED = [(1280, 1, 50, 256, 22.3), (640, 5, 85, 128, 22.9), (320, 5, 165, 256, 25.6), (160, 5, 335, 512, 29.0)]
"""Blocks, iterations, KiB that a block loads, threads, and microseconds: 2,560 columns of 10,240 halves on an H100."""


def test_products_that_load_less_at_once_cost_less() -> None:
    predicted = []
    for blocks, loop, kib, threads, us in MEASURED:
        resident = resident_blocks((kib << 10) // loop, threads, loops=loop > 1)
        work = BlockWork(kib << 10, 0, 0, arithmetic=kib << 9, functions=0, ahead=False, once=int(loop == 1), resident=resident)
        predicted.append(block_cost(work, blocks, loop, 52_500_000, DEVICES["H100"]).us)
        assert 0.9 < predicted[-1] / us < 1.15
    assert predicted == sorted(predicted) and predicted[-1] > predicted[0] + 2
