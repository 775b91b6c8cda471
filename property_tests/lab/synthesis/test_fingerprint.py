"""Fingerprints: equal up to rounding, different otherwise."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.lab.synthesis.fingerprint import agree, fingerprints

ROWS = st.lists(st.floats(-50, 50).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=3, max_size=8)


@given(ROWS)
def test_rounding_errors_do_not_change_a_fingerprint(row: list[float]) -> None:
    values = np.array([row])
    steps = np.abs(values) * 2.0**23
    assert (fingerprints(values, 0) == fingerprints(values, 0)).all()
    if (np.abs(np.modf(np.frexp(steps)[0] * 2.0**24)[0] - 0.5) > 1e-3).all():  # not at a boundary of a digit
        assert (fingerprints(values, 0) == fingerprints(values * (1 + 1e-13), 0)).all()


@given(ROWS, st.integers(0, 2), st.floats(0.01, 3))
def test_a_changed_entry_changes_the_fingerprint(row: list[float], place: int, change: float) -> None:
    changed = list(row)
    changed[place] += change
    assert fingerprints(np.array([row]), 0) != fingerprints(np.array([changed]), 0)


def test_an_undefined_entry_is_a_value_of_its_own() -> None:
    rows = np.array([[1.0, np.nan, 2.0], [1.0, 0.0, 2.0], [1.0, np.nan, 2.0]])
    first, second, third = fingerprints(rows, 0)
    assert first == third != second


def test_rows_agree_if_they_are_equal_where_both_are_defined() -> None:
    narrow, wide = np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, 3.0])
    assert agree(narrow, wide) and agree(wide, narrow)
    assert not agree(wide, wide + 1)
