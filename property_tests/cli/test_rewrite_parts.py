"""`mirage-eg rewrite` of a model with nodes that stay with torch: each program between them is rewritten."""

import json
from pathlib import Path

import pytest
import torch

from mirage_eg.frontend.load import load_parts
from mirage_eg.ir.serialize import from_json
from property_tests.support.command import run_command


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
def test_each_part_of_a_model_is_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(saved(tmp_path))
    name, parts = load_parts(path)
    assert [part.name for part in parts] == ["part0", "part1"] and name == "parted"
    code, out, _ = run_command(capsys, "rewrite", path, "--gpu", "h200", "--out", tmp_path / "out", "--json")
    assert code == 0
    reports = json.loads(out)
    assert [it["verdict"] for it in reports] == ["equal", "equal"]
    assert all(it["joint"]["us"] <= it["as_written"]["us"] for it in reports)
    assert reports[0]["ops_after"] < reports[0]["ops_before"] and len(reports[0]["folded"]) > 0
    for part in parts:
        whole = from_json((tmp_path / "out" / "parted" / part.name / "rewritten_whole.json").read_text())
        assert whole.input_types == part.program.input_types
    code, _, err = run_command(capsys, "rewrite", path, "--weights", "a*")
    assert code == 2 and "wanted a model that is one" in err
