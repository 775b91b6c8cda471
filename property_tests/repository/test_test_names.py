"""Every test's name is a claim of at most 72 letters, and no file has it twice."""

import ast
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
LONGEST = 72  # letters


def names(source: str) -> list[str]:
    """The test functions of a file, in its order."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function.name for function in functions if function.name.startswith("test")]


def faults(found: list[str]) -> list[str]:
    """Names that are too long, or that a later function of the same name hides."""
    return [name for name, times in Counter(found).items() if len(name) > LONGEST or times > 1]


def test_every_test_name_has_at_most_72_letters_and_is_used_once_a_file() -> None:
    found = {str(file.relative_to(TESTS)): names(file.read_text(encoding="utf-8")) for file in FILES}
    assert sum(map(len, found.values())) > 800
    assert {file: wrong for file, its in found.items() if (wrong := faults(its))} == {}


LONG = "x" * 68


@pytest.mark.parametrize("source", [f"def test_{LONG}(): ...", f"async def test_{LONG}(): ...", "def test_a(): ...\n" * 2])
def test_a_long_or_hidden_test_name_is_found(source: str) -> None:
    assert faults(names(source)) and not faults(names(f"def test_{LONG[1:]}(): ..."))
