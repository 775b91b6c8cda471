"""`mirage-eg bench models`: the table of layers; without a GPU it says what it can."""

import json
from pathlib import Path

import pytest

from property_tests.support.command import run_command


def test_a_row_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run_command(capsys, "bench", "models", "llama-9b")
    assert (code, out) == (2, "") and "got 'llama-9b', wanted the beginning of one of llama-8b decode b=1" in error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_tiny_layer_runs_in_our_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    code, shown, _ = run_command(capsys, "bench", "models", "tiny", "--budget", "30", "--out", str(out))
    [row] = map(json.loads, out.read_text().splitlines())
    assert code == 0 and "tiny" in shown
    assert row["used"] >= 1 and row["error"] <= 1e-5
    records = [part["record"] for part in row["parts"]]
    assert len(records) == row["segments"] and [it["decision"] for it in records].count("used") == row["used"]
    assert all(it["kernels"] and it["summary"] for it in records if it["decision"] == "used")
    assert all(f"tiny, {number}" in shown for number in range(1, row["segments"] + 1)) and "predicted" in shown
