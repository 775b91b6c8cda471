"""Parameters of tests."""

from collections.abc import Iterable
from typing import Any

import pytest

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


def _as_set(value: Any) -> Any:
    if isinstance(value, ParameterSet):
        return value
    return pytest.param(*(value if isinstance(value, tuple) else (value,)))
