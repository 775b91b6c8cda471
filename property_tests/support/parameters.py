"""Parameters of tests."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

AMPLE = 600.0  # seconds of budget: a busy machine takes ten times as long as a quiet one
ParameterSet = type(pytest.param())


def few(values: Iterable[Any], count: int) -> list[Any]:
    """Parameter sets for `parametrize`: the first `count` that are not marked slow run by default, the others are marked slow.

    A test of several parameters has tuples of values.
    """
    sets = [_as_set(value) for value in values]
    fast = [place for place, each in enumerate(sets) if not any(mark.name == "slow" for mark in each.marks)]
    for place in fast[count:]:
        sets[place] = sets[place]._replace(marks=[*sets[place].marks, pytest.mark.slow])
    return sets


def paired(*axes: Iterable[Any]) -> list[Any]:
    """Parameter sets of all combinations: by default as many run as the longest axis has values, the others are marked slow.

    Each value of each axis is in one that runs; so a product of axes that meet in no branch costs as much as the longest.
    """
    lists = [[*axis] for axis in axes]
    fast = {tuple(step % len(axis) for axis in lists) for step in range(max(map(len, lists)))}
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(lists, places, strict=True)), marks=[pytest.mark.slow] * (places not in fast)
        )
        for places in product(*(range(len(axis)) for axis in lists))
    ]


def _as_set(value: Any) -> Any:
    if isinstance(value, ParameterSet):
        return value
    return pytest.param(*(value if isinstance(value, tuple) else (value,)))
