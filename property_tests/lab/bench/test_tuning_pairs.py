"""Lines that differ in one choice alone say what it gains; others say nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.lab.bench.tuning_pairs import FLAGS, MANY_WARPS, RENAMED, gains

OFF: dict[str, Any] = dict.fromkeys(FLAGS, False) | {"safe": True, "num_warps": [4, 4], "num_stages": [3, 1], "programs": 0}


def line(us: float | None, mugraph: str = "one", stage: str = "details", **changed: Any) -> dict[str, Any]:
    made = {"kind": "measurement", "workload": "gqa", "batch": 1, "grid": [[2], [4]], "stage": stage, "us": us}
    return made | {"mugraph": mugraph, "schedule": OFF | changed}


@pytest.mark.parametrize("choice", FLAGS)
def test_a_pair_that_differs_in_a_choice_of_one_kernel_says_what_it_gains(choice: str) -> None:
    on = {choice: [0, 2] if choice == "programs" else [False, True]}
    [gain] = gains([line(6.0), line(4.0, **on)])
    assert (gain.choice, gain.on_us, gain.off_us, gain.ratio, gain.pairs) == (choice, 4.0, 6.0, 1.5, 1)


def test_the_pair_with_the_fastest_member_stands_for_all() -> None:
    slow = {"num_stages": [2, 1]}
    lines = [line(9.0, **slow), line(3.0, exp2=[True, False], **slow), line(2.0), line(2.5, exp2=[True, False])]
    [gain] = [gain for gain in gains(lines) if gain.choice == "exp2"]
    assert (gain.on_us, gain.off_us, gain.pairs) == (2.5, 2.0, 2)
    assert gain.median_ratio == pytest.approx((9.0 / 3.0 + 2.0 / 2.5) / 2)


def test_what_differs_in_more_or_in_its_graph_or_has_no_time_says_nothing() -> None:
    assert gains([line(6.0), line(4.0, exp2=[True, True])]) == []
    assert gains([line(6.0), line(4.0, exp2=[True, False], num_stages=[4, 1])]) == []
    assert gains([line(6.0), line(4.0, mugraph="other", exp2=[True, False])]) == []
    assert gains([line(6.0), line(None, exp2=[True, False])]) == []
    assert gains([line(6.0), line(4.0, stage="final", exp2=[True, False])]) == []
    assert gains([{"kind": "row"}]) == []


def test_many_warps_stand_against_the_best_of_fewer() -> None:
    [gain] = gains([line(6.0), line(5.0, num_warps=[8, 4]), line(4.0, num_warps=[16, 4]), line(3.0, num_warps=[32, 4])])
    assert (gain.choice, gain.on_us, gain.off_us) == (MANY_WARPS, 3.0, 5.0)
    assert gains([line(6.0), line(5.0, num_warps=[8, 4]), line(4.0, num_warps=[16, 8])]) == []


def test_the_command_prints_them_of_a_file_and_names_one_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "measurements.jsonl").write_text("\n".join(map(json.dumps, [line(6.0), line(4.0, exp2=[True, False])])))
    done = compared(tmp_path / "measurements.jsonl", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    [gain] = map(json.loads, done.stdout.splitlines())
    assert (gain["choice"], gain["ratio"]) == ("exp2", 1.5)
    (tmp_path / "measurements.jsonl").write_text("no line")
    done = compared(tmp_path / "measurements.jsonl")
    assert done.returncode == 2 and "measurements.jsonl" in done.stderr


def compared(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    script = Path(__file__).parents[3] / "benchmarks" / "choices.py"
    return subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_older_measurements_are_read_with_their_names_of_choices(old: str, new: str) -> None:
    others = {name: value for name, value in OFF.items() if name != new}
    off, on = (line(us) | {"schedule": others | {old: flags}} for us, flags in ((6.0, [False, False]), (4.0, [False, True])))
    [gain] = gains([off, on])
    assert (gain.choice, gain.ratio) == (new, 1.5)
