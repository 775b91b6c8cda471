"""JSON that others wrote is a value, or one error of one line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.ir.errors import JsonError
from mirage_eg.ir.json_text import parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_what_python_writes_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value


@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value)[:-1].encode()))
def test_other_bytes_are_a_value_or_an_error_of_one_line(data: bytes) -> None:
    try:
        parse_json(data)
    except JsonError as error:
        assert "\n" not in str(error) and len(str(error)) < 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": 1, "b": 2, "a": 1}', 'field "a" occurs twice'),
        ("[1, NaN]", "got NaN"),
        ("-Infinity", "got -Infinity"),
        ("1" * 9_999, "not JSON that can be read"),
        (b"\xff[]", "byte 0 is not UTF-8"),
        ("[1,\n2", "line 2, column 2: not JSON"),
    ],
)
def test_the_error_says_where_and_why(text: str | bytes, said: str) -> None:
    with pytest.raises(JsonError, match=said):
        parse_json(text)


def test_infinities_are_read_where_this_package_writes_them() -> None:
    assert parse_json("[Infinity, -Infinity]", infinities=True) == [float("inf"), -float("inf")]
