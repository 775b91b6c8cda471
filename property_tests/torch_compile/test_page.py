"""The tutorial of torch.compile: its example runs in a process that imports the package last, then the how-to's commands."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from property_tests.support.command import run_command
from property_tests.support.parameters import AMPLE

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # as the other tutorials
def test_the_example_and_the_commands_of_the_pages_run(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tutorial, page = ((ROOT / "docs" / name).read_text() for name in ("tutorials/pytorch.md", "how_to/torch_compile.md"))
    [snippet] = re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)
    [budget] = re.findall(r'"budget": [\d.]+', snippet)  # of a quiet machine
    snippet = snippet.replace(budget, f'"budget": {AMPLE}')
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "mirage_eg_entry_points-0.dist-info"  # as an installation of this checkout has it
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mirage_eg_entry_points\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in names.items()) for group, names in groups.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    paths = os.pathsep.join((str(ROOT), str(tmp_path)))
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", snippet], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"graph 1, segment 1 +\d+ +used", done.stdout)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^mirage-eg (cache .*)$", page, re.MULTILINE)
    assert commands
    for command in commands:
        assert run_command(capsys, *command.split())[0] == 0, command
    assert (tmp_path / "kernels.zip").is_file()
