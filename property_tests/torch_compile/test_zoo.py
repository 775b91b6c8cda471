"""Models of the zoo through the backend: right, and no further from our kernels than the page of measurements says."""

import re
from pathlib import Path

import pytest

from property_tests.support.compiled_zoo import compiled_model
from property_tests.support.model_zoo import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "torch_compile.md"
ROWS = {
    row.split(" | ")[0].strip("| "): row for row in re.findall(r"^\| \w+ \| \d+ in \d+ \|.*\|$", PAGE.read_text(), re.MULTILINE)
}
_QUICK = ("llama_sdpa", "bert")


def test_the_table_has_every_model_of_the_zoo() -> None:
    assert ROWS.keys() == MODELS.keys()


@pytest.mark.parametrize("name", [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def test_a_model_is_right_and_is_split_as_the_table_says(name: str) -> None:
    found = compiled_model(name)
    assert found.error <= 1e-5
    assert found.row() == ROWS[name] and (found.graphs, found.fallbacks, found.outside) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_right_with_the_rest_in_inductor(name: str) -> None:
    found = compiled_model(name, "inductor")
    assert found.error <= 1e-5 and found.fallbacks == 0
