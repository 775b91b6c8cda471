"""Counts agree with their nouns."""

import pytest

from mirage_eg.ir.plurals import counted


@pytest.mark.parametrize(
    ("given", "text"),
    [((1, "law"), "1 law"), ((0, "law"), "0 laws"), ((20480, "law"), "20,480 laws"), ((2, "class", "classes"), "2 classes")],
)
def test_a_count_agrees_with_its_noun(given: tuple[int, str], text: str) -> None:
    assert counted(*given) == text
