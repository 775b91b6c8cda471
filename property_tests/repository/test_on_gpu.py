"""One script runs all that needs a GPU: each step under a limit, with a line and a log, whatever the one before did."""

import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mirage_eg.frontend.load import BUILT_IN
from mirage_eg.frontend.long_rows import LONG_ROWS
from mirage_eg.frontend.prefill import PREFILL
from mirage_eg.frontend.workloads import PAPER
from property_tests.support.scripts import script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "on_gpu.py"


@pytest.fixture(scope="module")
def on_gpu() -> ModuleType:
    return script("benchmarks/on_gpu.py")


def listed(on_gpu: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """The commands that --list prints."""
    assert on_gpu.main(["--list", *arguments]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]


def test_every_row_is_measured_once_and_named_tests_exist(on_gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    commands = listed(on_gpu, capsys)
    rows = []
    for command in commands:
        assert all(
            (SCRIPT.parent.parent / word).exists() for word in command if word.startswith(("property_tests/", "benchmarks/"))
        )
        if command[3:5] == ["bench", "gpu"]:
            batch = command[command.index("--batch") + 1]
            rows += [(name, int(batch)) for name in command[5:] if name in BUILT_IN]
    paper = {(name, batch) for name in PAPER for batch in (1, 8, 16)}
    decoder = {(name, batch) for name in ("decoder_layer", "mlp_block") for batch in (1, 8, 16)}
    assert len(rows) == len(set(rows))
    assert set(rows) == paper | decoder | {(name, 1) for name in (*LONG_ROWS, *PREFILL)}


def test_tunings_of_two_lengths_know_nothing_and_are_compared(on_gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    short, long, compared = listed(on_gpu, capsys, "tuning", "--rows", "gqa:8")
    assert [command[command.index("--seconds") + 1] for command in (short, long)] == ["30", "90"]
    assert all(command[:2] == ["env", "MIRAGE_EG_CACHE=off"] for command in (short, long)) and short[2] != long[2]
    assert compared[1:] == ["benchmarks/tuning_time.py", *(command[command.index("--out") + 1] for command in (short, long))]


def test_steps_and_rows_are_chosen_by_name(on_gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    [command] = listed(on_gpu, capsys, "gpu", "--rows", "gqa:8", "qknorm:8", "--seconds", "20")
    assert command[3:9] == ["bench", "gpu", "gqa", "qknorm", "--batch", "8"] and "20.0" in command


@pytest.mark.parametrize("wrong", [["nothing"], ["--rows", "gqa"], ["--rows", "gqa:0"], ["--rows", "other:1"]])
def test_what_is_unknown_is_refused_in_a_line(on_gpu: ModuleType, capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    assert on_gpu.main(wrong) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_gpu_it_says_so(
    on_gpu: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(on_gpu, "gpu_available", lambda: False)
    assert on_gpu.main([]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_step_that_fails_or_hangs_has_its_line_and_the_next_one_runs(
    on_gpu: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def made(text: str) -> tuple[str, ...]:
        return (sys.executable, "-c", text)

    steps = [
        on_gpu.Step("bad", "", (made("print('why'); raise SystemExit(3)"), made("print('never')")), 60),
        on_gpu.Step("slow", "", (made("print('begun', flush=True); import time; time.sleep(60)"),), 2),
        on_gpu.Step("good", "", (made("print('first')"), made("print('second')")), 60),
    ]
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(on_gpu, "steps", lambda out, given: steps)
    assert on_gpu.main(["--dry-run"]) == 1
    _, bad, slow, good = capsys.readouterr().out.splitlines()
    assert bad.startswith("bad: exit 3") and bad.endswith("why")
    assert slow.startswith("slow: took more than 2 s")
    assert good.startswith("good: ok") and good.endswith("second")
    assert "never" not in (tmp_path / "bad.log").read_text()
