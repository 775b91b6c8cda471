"""`mirage-eg tune` shows and shares what was measured; what is no measurement is refused in one line."""

import json
from pathlib import Path

import pytest

from mirage_eg.cli.main import main
from mirage_eg.optimizer.tuning_database import append, file_of, read_lines

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


def call(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.argv", ["mirage-eg", "tune", *arguments])
        main()
    return int(ended.value.code or 0)


def test_lines_travel_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "lines.jsonl"
    append(file_of(here / "tuning", "NVIDIA H200"), [LINE, LINE | {"source": "t", "us": None, "problem": "wrong"}])
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(here))
    assert call("--export", str(file)) == 0
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(there))
    assert call("--import", str(file)) == call("--import", str(file)) == 0
    assert "2 added, 0 known" in (out := capsys.readouterr().out) and "0 added, 2 known" in out
    assert [*read_lines(file_of(there / "tuning", "NVIDIA H200"))] == [*read_lines(file)]
    assert call() == 0
    assert "NVIDIA H200" in capsys.readouterr().out


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
    assert call("--import", str(tmp_path / "lines.jsonl")) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "cache").exists()
