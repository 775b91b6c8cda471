"""notebooks/: each runs from start to end without a GPU, and is committed with outputs that a repository page can show."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.scripts import script

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SHOWN = {"text/plain", "text/html", "image/svg+xml"}


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield from cell["outputs"]


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 5


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter client's
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_any_folder_and_shows_what_is_committed(path: Path) -> None:
    ran = script("notebooks/build.py").execute(path)
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs(ran))
    stale = [*script("notebooks/build.py").stale(script("notebooks/build.py").read(path), ran)]
    assert stale == [], f"outputs older than the code: python notebooks/build.py {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_outputs_but_no_state_of_widgets(path: Path) -> None:
    notebook = read(path)
    assert path.stat().st_size < 1_000_000
    assert "widgets" not in notebook["metadata"]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs(notebook))
    assert all(set(output.get("data", {})) <= SHOWN for output in outputs(notebook))
    executed = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert executed == list(range(1, len(executed) + 1))


def test_an_output_that_is_older_than_the_code_is_found() -> None:
    committed, ran = (script("notebooks/build.py").read(NOTEBOOKS[0]) for _ in range(2))
    assert [*script("notebooks/build.py").stale(committed, ran)] == []
    cell = next(cell for cell in ran.cells if any("text" in output for output in cell.get("outputs", ())))
    cell.outputs[0].text += "1"
    [said] = script("notebooks/build.py").stale(committed, ran)
    assert cell.source.splitlines()[-1][:80] in said


def test_columns_of_times_are_not_compared() -> None:
    page = "<table><tr><th>law</th><th>ms</th></tr><tr><td>a</td><td>{}</td></tr></table>"
    without = script("notebooks/build.py").without_times
    assert without(page.format(1)) == without(page.format(2)) != without(page.format(1).replace(">a<", ">b<"))
    plain = page.replace("ms", "e-nodes")
    assert without(plain.format(1)) == plain.format(1)


def test_the_first_notebook_s_best_is_one_kernel_that_divides_last() -> None:
    """Its text says so."""
    html = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs(read(NOTEBOOKS[0])))
    best = html.split("what it does")[1].split("</tr>")[1]
    assert "divides after the product" in best and ";" not in best.split("divides")[1].split("</td>")[0]


def test_the_ramps_wrong_kernel_passes_the_ramp_and_fails_random_inputs() -> None:
    text = "".join("".join(output.get("text", "")) for output in outputs(read(FOLDER / "04_why_one_ramp_is_not_a_test.ipynb")))
    assert "wrong kernel: accepted" in text
    assert "wrong kernel: not equal" in text
    assert "accepted by 0 of 100 trials" in text
