"""docs/how_to/testing.md: its tests pass, and its message is the one that a false law gives."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.testing import assert_law_sound

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "testing.md").read_text(encoding="utf-8")


def functions_of_the_page() -> dict[str, Callable[[], None]]:
    """The tests of the page by name."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/how_to/testing.md", "exec"), names)
    return {name: function for name, function in names.items() if name.startswith("test_")}


TESTS = functions_of_the_page()


@pytest.mark.parametrize("name", TESTS)
def test_each_test_of_the_page_passes(name: str) -> None:
    TESTS[name]()


def test_the_page_has_a_test_of_each_kind() -> None:
    assert len(TESTS) == 5


def test_the_message_of_the_page_is_the_one_that_is_raised() -> None:
    [shown] = re.findall(r"```text\nAssertionError: (.*?)\n```", PAGE, re.DOTALL)
    with pytest.raises(AssertionError) as caught:
        assert_law_sound("(rewrite (Sqrt (Add x y)) (Add (Sqrt x) (Sqrt y)))")
    assert str(caught.value) == shown
