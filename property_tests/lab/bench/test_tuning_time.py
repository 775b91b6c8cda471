"""How soon tuning finds its result, on lines that are made up: within a tuning, and against the longest of the same row."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.lab.bench.gpu_row_records import MEASUREMENTS, ROWS
from mirage_eg.optimizer.tuning_database import append
from property_tests.support.scripts import script

SCRIPT = script("benchmarks/tuning_time.py")

LINES = [(5.0, None), (12.0, 8.0), (25.0, 5.0), (40.0, 6.0), (80.0, 4.0)]  # seconds and microseconds


def tuned(
    folder: Path, asked: float, warm_us: float, lines: Sequence[tuple[float, float | None]] = LINES, batch: int = 1, **more: Any
) -> Path:
    key = {"workload": "gqa", "batch": batch}
    folder.mkdir(exist_ok=True)
    for seconds, us in lines:
        append(folder / MEASUREMENTS, [{"kind": "measurement", "stage": "details", "seconds": seconds, "us": us} | key])
    append(folder / MEASUREMENTS, [{"kind": "measurement", "stage": "final", "seconds": lines[-1][0] + 1, "us": 1.0} | key])
    ours = {"warm_us": warm_us, "stages": {"tune": 1.05 * asked, "total": 1.5 * asked}, "tuning_seconds": asked} | more
    row = key | {"device": "none", "ours": ours, "baselines": {}, "lower_bound_us": 1.0, "ceilings": {}, "versions": {}}
    append(folder / ROWS, [row])
    return folder


def test_the_figure_is_the_best_known_so_far_over_the_best_of_all(tmp_path: Path) -> None:
    [found] = SCRIPT.tuning_times([tuned(tmp_path, 90.0, 4.0)])
    assert found.known == {10: None, 20: 2.0, 30: 1.25, 45: 1.25, 60: 1.25, 90: 1.0}
    assert (found.asked, found.took, found.over_longest) == (90.0, 94.5, None)


def test_a_result_is_compared_with_the_longest_tuning_of_its_row(tmp_path: Path) -> None:
    short, long = tuned(tmp_path / "30", 30.0, 4.1), tuned(tmp_path / "90", 90.0, 4.0)
    tuned(tmp_path / "30", 30.0, 9.0, batch=8)
    found = {(it.asked, it.batch): it.over_longest for it in SCRIPT.tuning_times([short, long])}
    assert found == {(30.0, 1): pytest.approx(1.025), (30.0, 8): None, (90.0, 1): None}


def test_a_row_tuned_again_in_its_folder_or_without_its_seconds_is_left_out(tmp_path: Path) -> None:
    tuned(tuned(tmp_path / "twice", 90.0, 4.0), 90.0, 4.0)
    tuned(tmp_path / "old", 90.0, 4.0)
    [line] = (tmp_path / "old" / ROWS).read_text().splitlines()
    (tmp_path / "old" / ROWS).write_text(line.replace("tuning_seconds", "other"))
    assert SCRIPT.tuning_times([tmp_path / "twice", tmp_path / "old"]) == []


def test_medians_count_a_row_without_a_candidate_as_the_worst() -> None:
    def row(figure: float | None, over: float | None) -> Any:
        return SCRIPT.TuningTime("gqa", 1, "none", 90.0, 90.0, 99.0, 4.0, dict.fromkeys(SCRIPT.AFTER, figure), over)

    known, over_longest = SCRIPT.medians([row(None, 1.5), row(1.2, None), row(1.0, 1.0)])
    assert known == dict.fromkeys(SCRIPT.AFTER, 1.2) and over_longest == 1.25
    assert SCRIPT.medians([row(None, None)]) == (dict.fromkeys(SCRIPT.AFTER, float("inf")), None)


def test_the_script_prints_each_tuning_and_names_a_folder_without_lines(tmp_path: Path) -> None:
    done = run(tuned(tmp_path / "90", 90.0, 4.0), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    [line] = map(json.loads, done.stdout.splitlines())
    assert line["known"]["30"] == 1.25 and line["took"] == 94.5
    table = run(tuned(tmp_path / "30", 30.0, 4.1), tmp_path / "90")
    assert table.returncode == 0 and "1.025" in table.stdout and "≤ 1.05" in table.stdout
    done = run(tmp_path / "none")
    assert done.returncode == 2 and "no rows.jsonl" in done.stderr


def run(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    script = Path(__file__).parents[3] / "benchmarks" / "tuning_time.py"
    return subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True, check=False)
