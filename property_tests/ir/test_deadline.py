"""A deadline is seconds of one process's clock, whatever clock reads it."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.ir import deadline
from mirage_eg.ir.deadline import NEVER, after


@given(seconds=st.floats(-100, 1e6), here=st.floats(0, 1e9), there=st.floats(0, 1e9))
def test_another_hosts_clock_leaves_as_many_seconds(seconds: float, here: float, there: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline, "monotonic", lambda: here)
        sent = pickle.dumps(after(seconds))
        patch.setattr(deadline, "monotonic", lambda: there)
        received = pickle.loads(sent)
        assert received.left() == pytest.approx(seconds, abs=1e-6)
        assert received.passed() == (received.left() <= 0)
        assert received.halfway().left() == pytest.approx(seconds / 2, abs=1e-6)
        assert received.part(0.25).left() == pytest.approx(seconds / 4, abs=1e-6)


def test_without_seconds_there_is_no_end() -> None:
    for one in (NEVER, after(None), pickle.loads(pickle.dumps(NEVER)), NEVER.halfway(), NEVER.part(0.5), NEVER.later(1)):
        assert not one.passed() and one.left() == float("inf")


def test_a_search_has_no_time_of_the_wall_clock() -> None:
    from mirage_eg.pipeline.run.options import Options

    assert 9 < Options(budget=10).until().left() <= 10 and Options(budget=None).until() == NEVER
