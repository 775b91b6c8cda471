"""`pipeline.run.peak_memory`: the peak since a reset."""

import sys
from mmap import mmap

from mirage_eg.pipeline.run.peak_memory import peak_bytes, peak_mib, reset_peak


def test_the_peak_is_of_the_time_since_it_was_reset() -> None:
    reset_peak()
    before = peak_bytes()
    with mmap(-1, 64 << 20) as block:  # pages of its own: the heap may still hold what an earlier test freed
        block.write(b"x" * len(block))
        assert peak_bytes() - before > 48 << 20
    if sys.platform == "linux":
        reset_peak()
        assert peak_bytes() - before < 32 << 20
    least = peak_bytes() >> 20
    assert least <= peak_mib() <= least + 1
