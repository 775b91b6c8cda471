"""`mirage-eg rewrite` of a model with nodes that stay with torch: each program between them is rewritten."""

import json
import sys
from pathlib import Path

import pytest
import torch

from mirage_eg.cli.main import main
from mirage_eg.frontend.load import load_parts
from mirage_eg.ir.serialize import from_json


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["mirage-eg", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def saved(folder: Path) -> Path:
    """A model whose inverse in the middle stays with torch."""

    class Parted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(torch.linalg.inv(self.a(x).relu() * self.b(x))).relu()

    path = folder / "parted.pt2"
    torch.export.save(torch.export.export(Parted(), (torch.randn(16, 16),)), path)
    return path


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_each_part_of_a_model_is_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(saved(tmp_path))
    name, parts = load_parts(path)
    assert [part.name for part in parts] == ["part0", "part1"] and name == "parted"
    assert run(monkeypatch, "rewrite", path, "--gpu", "h200", "--out", str(tmp_path / "out"), "--json") == 0
    reports = json.loads(capsys.readouterr().out)
    assert [it["verdict"] for it in reports] == ["equal", "equal"]
    assert all(it["joint"]["us"] <= it["as_written"]["us"] for it in reports)
    assert reports[0]["ops_after"] < reports[0]["ops_before"] and len(reports[0]["folded"]) > 0
    for part in parts:
        whole = from_json((tmp_path / "out" / "parted" / part.name / "rewritten_whole.json").read_text())
        assert whole.input_types == part.program.input_types
    assert run(monkeypatch, "rewrite", path, "--weights", "a*") == 2
    assert "wanted a model that is one" in capsys.readouterr().err
