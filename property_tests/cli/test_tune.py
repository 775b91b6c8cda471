"""`mirage-eg tune` shows and shares what was measured; what is no measurement is refused in one line."""

import json
from pathlib import Path

import pytest

from mirage_eg.optimizer.tuning_database import append, file_of, read_lines
from property_tests.support.command import run_command

LINE = {
    "source": "s",
    "device": "NVIDIA H200",
    "workload": "w",
    "mugraph": "g",
    "versions": {"triton": "3.6"},
    "us": 2.5,
    "error": 1e-4,
    "problem": None,
}


def test_lines_travel_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "lines.jsonl"
    append(file_of(here / "tuning", "NVIDIA H200"), [LINE, LINE | {"source": "t", "us": None, "problem": "wrong"}])
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(here))
    assert run_command(capsys, "tune", "--export", file)[0] == 0
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(there))
    for added in ("2 added, 0 known", "0 added, 2 known"):
        code, out, _ = run_command(capsys, "tune", "--import", file)
        assert code == 0 and added in out
    assert [*read_lines(file_of(there / "tuning", "NVIDIA H200"))] == [*read_lines(file)]
    code, out, _ = run_command(capsys, "tune")
    assert code == 0 and "NVIDIA H200" in out


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        json.dumps(LINE | {"us": -1}),
        json.dumps(LINE | {"versions": None}),
        json.dumps(LINE | {"kernels_us": [None]}),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lines.jsonl").write_text(text)
    code, _, err = run_command(capsys, "tune", "--import", tmp_path / "lines.jsonl")
    assert (code, err.count("\n")) == (2, 1) and not (tmp_path / "cache").exists()
