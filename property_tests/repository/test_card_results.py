"""The pages of results have a section a card, and each row below a goal has an entry."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.frontend.workloads import PAPER
from mirage_eg.lab.bench.gpu import BATCHES
from mirage_eg.optimizer.tuning_database import append

sys.path.insert(0, str(Path(__file__).parents[2]))  # docs is in no package
from docs import card_results
from docs.card_results import NOT_TRIED, TRIED, cards, main_card, missed, readme_table, sections


def test_a_row_has_an_entry_if_and_only_if_it_misses_a_goal() -> None:
    below = {(card.name, row.workload, row.batch) for card in cards() for row in card.rows if missed(card, row)}
    assert set(TRIED) == below, "docs/card_results.py: TRIED has an entry for each row that misses a goal, and no other"


def measure(folder: Path, card: str, workload: str, batch: int, ratio: float, **more: Any) -> None:
    timed = {"torch.compile": {"warm_us": 10 * ratio, "cold_us": 20 * ratio}}
    line = {"workload": workload, "batch": batch, "device": card, "lower_bound_us": 8.0, "baselines": timed, "time": 1.0}
    line |= {"ceilings": {"bytes_per_second": 3e12, "flops_per_second": 7e14}, "versions": {"torch": "2"}}
    append(folder / f"gpu_{card}.jsonl", [line | {"ours": {"warm_us": 10.0, "cold_us": 20.0}} | more])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Card old with all of the paper's rows, card new with a few others."""
    for name in PAPER:
        for batch in BATCHES:
            measure(tmp_path, "old", name, batch, 0.98 if (name, batch) == ("gqa", 8) else 1.5)
    measure(tmp_path, "new", "gqa", 1, 1.25, time=2.0)
    measure(tmp_path, "new", "decoder_layer", 1, 1.22, time=2.0)
    measure(tmp_path, "new", "decoder_layer", 8, 1.22, time=2.0)
    measure(tmp_path, "new", "softmax", 1, 1.1, time=2.0)
    return tmp_path


def test_each_card_has_its_section_and_the_tables_of_its_lines(folder: Path) -> None:
    page = sections(cards(folder))
    new, old = page[: page.index("## old")], page[page.index("## old") :]
    assert new.startswith("## new\n") and "### Long rows" in new and "### Prefill" not in new
    assert "### Long rows" not in old and "Geometric mean of the 18 ratios" in old and "results_bars.svg" in old
    assert "| gqa | 8 | 10.0 / 20.0 | 9.8 / 19.6 | torch.compile | 0.98 / 0.98 | 8.0 | 0.80 |" in old
    assert "Goals: 1 warm, 0.97 cold. 17 of 18 rows reach them; below a goal:\n\n- gqa b = 8: 0.980 warm." in old


def test_each_program_has_its_own_goals(folder: Path) -> None:
    page = sections(cards(folder))
    assert "Goals: 1.25 warm (decoder_layer b = 1); 1.2 warm (decoder_layer b = 8). 1 of 2 rows reach them" in page
    assert "- decoder_layer b = 1: 1.220 warm. " in page and "- decoder_layer b = 8" not in page
    assert "- softmax b = 1: 0.800 of the lower bound. " in page and "| 1.10 / 1.10 | 1.10 | 8.0 | 0.80 |" in page


def test_a_row_below_a_goal_without_an_entry_is_marked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sections(cards(folder)).count(NOT_TRIED) == 3
    monkeypatch.setattr(card_results, "TRIED", {("old", "gqa", 8): "Why."})
    page = sections(cards(folder))
    assert page.count(NOT_TRIED) == 2 and "- gqa b = 8: 0.980 warm. Why.\n" in page


def test_readme_names_the_newest_card_that_has_all_rows(folder: Path) -> None:
    found = cards(folder)
    assert [card.name for card in found] == ["new", "old"] and main_card(found).name == "old"
    text = readme_table(found)
    assert (
        text.startswith("One old (driver ?; torch 2), float16:\n")
        and "| gqa | 10.0 / 15.0 (1.50) | 10.0 / 9.8 (0.98) |" in text
    )
    assert "17 of 18 rows are ahead" in text and "Slower with cold caches: gqa b = 8 (0.98)." in text
    assert "new: 1 of 1 rows are ahead; geometric mean of the ratios 1.25 warm and 1.25 cold." in text


def test_two_cards_in_one_file_are_refused(folder: Path) -> None:
    measure(folder, "old", "gqa", 1, 1.0, device="other")
    with pytest.raises(ValueError, match="got lines of old, other, wanted those of one card"):
        cards(folder)
