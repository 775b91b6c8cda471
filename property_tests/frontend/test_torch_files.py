"""Files of torch.export.save from others: what torch can refuse is refused, and nothing of it runs."""

import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import mirage_eg as mi
from mirage_eg.frontend.torch_export import load
from mirage_eg.ir.errors import ProgramError
from property_tests.support.command import run_command


class Trap:
    """Its pickle makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def saved(path: Path) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU()).eval()
    torch.export.save(torch.export.export(model, (torch.randn(4, 8),)), path)
    return path


def with_trap(path: Path, place: Path) -> Path:
    """The file with another pickle of example inputs."""
    trapped = path.with_name("trapped.pt2")
    pickle = io.BytesIO()
    torch.save({"x": Trap(place)}, pickle)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(trapped, "w") as new:
        for name in old.namelist():
            new.writestr(name, pickle.getvalue() if "sample_inputs" in name else old.read(name))
    return trapped


@pytest.mark.parametrize("command", ["explain", "optimize", "rewrite"])
def test_a_pickle_that_runs_code_is_refused_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trapped = with_trap(saved(tmp_path / "model.pt2"), tmp_path / "trap")
    code, _, error = run_command(capsys, command, str(trapped))
    assert code == 2 and error.count("\n") == 1 and "may run any code" in error and "trapped.pt2" in error
    assert not (tmp_path / "trap").exists()


def test_a_file_without_such_a_pickle_is_read_and_the_environment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "model.pt2")
    for before in (None, "0"):
        monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
        if before is not None:
            monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", before)
        assert len(mi.torch.import_program(load(path)).segments) == 1
        assert os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD") == before


@dataclass
class Pair:
    """Example inputs of a class."""

    a: torch.Tensor
    b: torch.Tensor


class OfPair(torch.nn.Module):
    def forward(self, pair: Pair) -> torch.Tensor:
        return torch.relu(pair.a) + pair.b


def test_a_program_with_inputs_of_a_class_is_read_where_it_is_trusted(tmp_path: Path) -> None:
    torch.export.register_dataclass(Pair, serialized_type_name="property_tests.Pair")
    program = torch.export.export(OfPair(), (Pair(torch.randn(4, 8), torch.randn(4, 8)),))
    torch.export.save(program, tmp_path / "pair.pt2")
    with pytest.raises(ProgramError, match=r"pair\.pt2: a pickle .* if you trust it, try in Python"):
        load(tmp_path / "pair.pt2")
    assert isinstance(mi.torch.load(tmp_path / "pair.pt2"), torch.export.ExportedProgram)
