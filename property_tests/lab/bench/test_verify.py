"""`mirage-eg bench verify` prints rates and stages, appends JSON lines, and refuses what it cannot measure."""

import importlib.util
import json
from pathlib import Path

import pytest

from property_tests.support.command import run_command, start_command


@pytest.mark.slow
def test_a_row_has_the_rate_of_small_verdicts_and_the_seconds_of_every_stage(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "verify.jsonl"
    code, out, err = start_command("bench", "verify", "lora", "--repetitions", "1", "--json", "--out", path)
    assert (code, err) == (0, "")
    [row] = json.loads(out)
    assert json.loads(path.read_text()) == row
    assert (row["workload"], row["batch"], row["proved"]) == ("lora", 1, True)
    assert row["small_per_second"] > 1 and row["real_per_second"] > 0.1
    assert all(row[f"{stage}_seconds"] > 0 for stage in ("inputs", "field", "float", "prove"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "no program 'nothing': the workloads are rmsnorm"),
        (("lora", "--repetitions", "0"), "got 0 repetitions"),
        (("lora", "--batch", "0"), "batches [0]"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(capsys, "bench", "verify", *arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1 and said in err


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_gpu_is_refused_with_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "bench", "verify", "lora", "--gpu")
    assert (code, out) == (2, "") and "mirage-eg[cuda12]" in err
