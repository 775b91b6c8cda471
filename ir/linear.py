"""Linear combinations: the numbers of what they combine."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeVar

Key = TypeVar("Key")
Number = TypeVar("Number", int, Fraction)


def plus(one: Mapping[Key, Number], other: Mapping[Key, Number], times: Number | int = 1) -> dict[Key, Number]:
    """one + times · other, without numbers that are 0."""
    total = dict(one)
    for key, number in other.items():
        total[key] = total.get(key, 0) + times * number
    return {key: number for key, number in total.items() if number}
