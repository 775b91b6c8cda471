"""Parameters of tests."""

from collections.abc import Iterable
from typing import Any

import pytest

ParameterSet = type(pytest.param())


def few(values: Iterable[Any], count: int) -> list[Any]:
    """The first values; those that follow run with the slow tests. Values of several names are tuples."""
    return [value if place < count else _slow(value) for place, value in enumerate(values)]


def _slow(value: Any) -> Any:
    if isinstance(value, ParameterSet):
        return value._replace(marks=[*value.marks, pytest.mark.slow])
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)
