"""`bench paper` measures the published table: complete cells find what a plain search finds, others say so."""

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.lab.bench.paper_table import METHODS, csv_text, measure, published
from mirage_eg.lab.bench.rule_search import rule_search
from mirage_eg.lab.bench.search_programs import SearchProgram, search_programs
from mirage_eg.lab.charts import Curve, line_chart
from mirage_eg.search.structure_search import SearchLimits
from property_tests.support.command import run_command


@pytest.fixture(scope="module")
def part() -> SearchProgram:
    [only] = search_programs("lora", WORKLOADS["lora"](1))
    return only


@pytest.mark.slow
def test_a_complete_cell_has_the_structures_of_the_search(part: SearchProgram) -> None:
    cells = measure(part, [5, 6], 60.0, [1], METHODS[:2])
    assert [(cell.method, cell.block_ops) for cell in cells] == [(method, ops) for method in METHODS[:2] for ops in (5, 6)]
    for cell in cells:
        side = rule_search(part, load_rules(cell.method), SearchLimits(cell.block_ops)).side
        assert (cell.complete, cell.structures, cell.visited) == (True, side.structures, side.visited)
        assert cell.text == f"{cell.seconds:.2f}"


def test_a_column_ends_where_the_time_limit_is_reached(part: SearchProgram) -> None:
    [cell] = measure(part, [6, 7, 8], 0.3, [1], ["without pruning"])
    assert not cell.complete and cell.block_ops == 6 and cell.text.startswith("over ")


def test_published_seconds_are_beside_the_cells_that_they_compare_with() -> None:
    assert [published(5, "abstract", count) for count in (1, 8)] == ["58", "11"]
    assert published(7, "without pruning", 8) == "over 10 h" and published(7, "without pruning", 1) is None
    assert published(5, "indexed", 1) is None and published(16, "abstract", 1) is None


def test_lines_hold_every_cell(part: SearchProgram) -> None:
    cells = measure(part, [5], 60.0, [1], METHODS[:1])
    [row] = csv.DictReader(csv_text(cells).splitlines())
    assert (row["method"], int(row["structures"]), row["complete"]) == ("indexed", cells[0].structures, "True")


def test_a_chart_has_a_mark_for_each_power_of_ten_between_its_points() -> None:
    drawn = ElementTree.fromstring(line_chart([Curve("a", ((5, 0.02), (6, 300.0)), "bar", cut=True)], "t", "x", "y"))
    words = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"0.01", "0.1", "1", "10", "100", "1000", "over", "5", "6", "a"} <= words


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    return partial(run_command, capsys, "bench", "paper")


def test_the_command_prints_both_tables_and_writes_lines_and_picture(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, _ = run("--max-block-ops", "5", "--limit", "0.5", "--out", str(tmp_path / "o"))
    assert code == 0 and "published" in out and "stands for all its sizes" in out
    assert ElementTree.parse(tmp_path / "o" / "paper.svg").getroot().tag.endswith("svg")
    assert len((tmp_path / "o" / "paper.csv").read_text().splitlines()) >= 4
    code, out, _ = run("lora", "--max-block-ops", "5", "--limit", "0.2", "--json")
    assert code == 0 and {cell["method"] for cell in json.loads(out)["cells"]} == set(METHODS)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("--limit 0", "wanted seconds above 0"),
        ("--max-block-ops 4", "wanted at least 5"),
        ("nothing", "no program 'nothing'"),
        ("mlp_block", "wanted one of one block graph"),
        ("--out /proc/none", "cannot be written"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: str, wanted: str, run: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "") and err.count("\n") == 1 and wanted in err
