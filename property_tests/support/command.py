"""The command line in this process, where no other has to start and import, or in one of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from mirage_eg.cli.main import main

PROGRAM = """
import mirage_eg as mi

def program():
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 64), name="x")
    w = graph.new_input((64, 32), name="w")
    graph.mark_output(graph.matmul(graph.silu(x), w), "y")
    return graph
"""
"""A program in a file of a user."""


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `mirage-eg` in this process."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.argv", ["mirage-eg", *map(str, arguments)])
        main()
    code = ended.value.code
    return (code if isinstance(code, int) else 0, *capsys.readouterr())


def start_command(*arguments: object, folder: Path | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `mirage-eg` in a process of its own."""
    command = [sys.executable, "-m", "mirage_eg", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    return done.returncode, done.stdout, done.stderr


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    """The line with which the command line refuses, after the checks that hold for every refusal."""
    before = sorted(folder.rglob("*"))
    code, out, err = run_command(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("mirage-eg: ")
    assert err.count("\n") == 1 and err.endswith("\n")
    assert "Traceback" not in err
    assert sorted(folder.rglob("*")) == before
    return err
