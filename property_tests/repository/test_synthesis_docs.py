"""docs/how_to/synthesis.md: its commands print and write what the page shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "synthesis.md").read_text(encoding="utf-8")
[LAWS] = re.findall(r"`mine\.egg`:\n\n```egg\n(.*?)```", PAGE, re.DOTALL)


def run(arguments: list[str], folder: Path) -> str:
    call = [sys.executable, *arguments]
    done = subprocess.run(call, capture_output=True, text=True, timeout=240, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(part: str) -> list[str]:
    """The arguments of the page's command with a word in it."""
    [line] = [line for line in re.findall(r"(?m)^mirage-eg .*", PAGE) if part in line]
    return ["-m", *shlex.split(line.replace("mirage-eg", "mirage_eg", 1))]


def test_the_synthesized_file_has_the_law_of_the_page(tmp_path: Path) -> None:
    printed = run(command("--ops Exp"), tmp_path)
    assert "packaged laws over these ops up to size 2: 7, derived: 7" in printed
    [shown] = re.findall(r"```egg\n(; size.*?)```", PAGE, re.DOTALL)
    assert shown in (tmp_path / "found.egg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_minimize_prints_the_derivation_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "mine.egg").write_text(LAWS, encoding="utf-8")
    [shown] = re.findall(r"```text\n(mine\.egg: .*?)```", PAGE, re.DOTALL)
    assert shown in run(command("minimize"), tmp_path)
    assert "; turn follows from associate, swap" in (tmp_path / "minimal.egg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_python_block_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.egg").write_text(LAWS, encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(["-c", block], tmp_path)
