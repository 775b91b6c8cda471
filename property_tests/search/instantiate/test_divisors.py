"""The divisors of an extent, of which loop counts are chosen: also those of a billion elements, at once."""

from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.search.instantiate.tiling_space import _divisors


@given(st.integers(1, 3000))
def test_divisors_are_all_numbers_that_divide(size: int) -> None:
    assert _divisors(size) == tuple(number for number in range(1, size + 1) if size % number == 0)


def test_divisors_of_a_billion_take_no_second() -> None:
    begun = process_time()
    found = _divisors(112 * 64 * 512 * 512)
    assert process_time() - begun < 1 and len(found) == 58 and found[-1] == 112 * 64 * 512 * 512
