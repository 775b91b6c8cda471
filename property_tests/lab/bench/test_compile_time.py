"""The first call of a compiled layer: the script's lines and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "compile_time.py"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_a_layer_that_there_is_not_is_one_line() -> None:
    done = run("gpt5")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("compile_time: got 'gpt5', wanted one of") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_second_process_searches_nothing_and_uses_as_many_segments(tmp_path: Path) -> None:
    done = run("tiny", "--with", "ours", "--json", str(tmp_path / "lines.jsonl"))
    assert done.returncode == 0, done.stderr
    empty, full = (json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines())
    assert empty["searched"] > 0 == full["searched"] and empty["searches"] and not full["searches"]
    assert full["warm"] and not empty["warm"]
    assert empty["used"] == full["used"] > 0
    for line in (empty, full):  # each moment is in one stage
        assert 0.8 * line["seconds"] < sum(line["stages"].values()) < 1.1 * line["seconds"]
    assert "choices" in empty["stages"] and "choices" not in full["stages"]
