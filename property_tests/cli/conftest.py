"""The current folder of the tests of the command line."""

from pathlib import Path

import pytest

from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.serialize import to_json
from property_tests.support.command import PROGRAM


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a good program, a good graph, a rule file that is none, and a file where a folder is wanted."""
    (tmp_path / "good.py").write_text(PROGRAM)
    (tmp_path / "good.json").write_text(to_json(WORKLOADS["lora"](1)))
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "inverse.egg").write_text("; domain: indexed\n(rewrite (Div x (Sqrt y)) (Mul x (Rsqrt y)))\n")
    (tmp_path / "endless.egg").write_text("; domain: indexed\n(rewrite (Sum i x) (Sum i (Add (Sum i x) x)))\n")
    (tmp_path / "unknown.egg").write_text("; domain: indexed\n(rewrite (Expp x) (Exp x))\n")
    (tmp_path / "notes.txt").write_text("no program")
    monkeypatch.chdir(tmp_path)
    return tmp_path
