"""Garbage collection during runs."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mirage_eg.backends.evaluator.garbage_collection import rare_collections


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_collections_are_rare_until_the_last_of_overlapping_runs_ends(thresholds: tuple[int, int, int]) -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(rare_collections)
    second.enter_context(rare_collections)
    first.close()
    assert gc.get_threshold()[0] > 5 * thresholds[0]
    second.close()
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("own", [0, 1_000_000])
def test_a_process_that_collects_less_is_left_alone(own: int, thresholds: tuple[int, int, int]) -> None:
    gc.set_threshold(own)
    with rare_collections:
        assert gc.get_threshold()[0] == own
    assert gc.get_threshold()[0] == own
