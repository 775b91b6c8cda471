"""Where buffers lie in shared memory: the model of the compiler's allocator."""

from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.allocation import Buffer, allocated

moments = st.integers(0, 12)
buffers = st.builds(
    lambda size, first, length: Buffer(1024 * size, first, first + length), st.integers(1, 16), moments, st.integers(0, 6)
)


def _live(given_buffers: list[Buffer]) -> int:
    """The most bytes that live at once."""
    return max((sum(each.nbytes for each in given_buffers if each.meets(at, at)) for at in range(20)), default=0)


@given(st.lists(buffers, max_size=8))
def test_an_allocation_holds_what_lives_at_once_and_is_no_larger_than_all_side_by_side(drawn: list[Buffer]) -> None:
    assert _live(drawn) <= allocated(drawn) <= sum(buffer.nbytes for buffer in drawn)


@given(st.lists(buffers, max_size=6))
def test_buffers_that_all_live_at_once_lie_side_by_side(drawn: list[Buffer]) -> None:
    together = [Buffer(buffer.nbytes, 3, 4) for buffer in drawn]
    assert allocated(together) == sum(buffer.nbytes for buffer in drawn)


@given(st.lists(buffers, min_size=1, max_size=6))
def test_buffers_of_which_no_two_meet_share_their_bytes(drawn: list[Buffer]) -> None:
    apart = [Buffer(buffer.nbytes, 2 * number, 2 * number) for number, buffer in enumerate(drawn)]
    assert allocated(apart) == max(buffer.nbytes for buffer in drawn)


def test_a_hole_that_the_compiler_leaves_is_counted() -> None:
    """Seen in attention on sm_80: 65,536 bytes of which 49,152 live at once."""
    keys, queries, values, exponentials = Buffer(32768, 3, 4), Buffer(16384, 1, 8), Buffer(16384, 5, 12), Buffer(32768, 11, 11)
    assert _live([queries, keys, values, exponentials]) == 49152
    assert allocated([queries, keys, values, exponentials]) == 65536
