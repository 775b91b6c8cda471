"""rules/README.md: its axioms are sound and found useful, its op from outside is fused and right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_eg.ir.errors import GraphError
from mirage_eg.new_op import register_op

README = Path(__file__).parents[1] / "rules" / "README.md"


@pytest.fixture
def blocks(tmp_path: Path) -> dict[str, Path]:
    """The code blocks of the page, written to the files that it names."""
    found = re.findall(r"```(\w+)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    sources = [text for language, text in found if language in ("egg", "python")]
    names = ("my_axioms.egg", "softplus.py", "softplus.egg")
    for name, text in zip(names, sources, strict=True):
        (tmp_path / name).write_text(text)
    return {name: tmp_path / name for name in names}


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mirage_eg", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder)


@pytest.mark.usefixtures("blocks")
def test_the_axioms_of_the_page_are_sound_and_make_something_newly_findable(tmp_path: Path) -> None:
    checked = run("rules", "check", "my_axioms.egg", folder=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    seen = run("rules", "impact", "my_axioms.egg", "rmsnorm", "--max-block-ops", "7", folder=tmp_path)
    assert "rmsnorm: newly found" in seen.stdout


@pytest.mark.usefixtures("blocks")
def test_the_op_of_the_page_is_checked_fused_proved_and_written(tmp_path: Path) -> None:
    checked = run("rules", "check", "softplus.egg", "--ops", "softplus.py", folder=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    done = run("optimize", "softplus.py", "--rules", "softplus.egg", "--top", "2", "--jobs", "1", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "one product" in done.stdout
    assert "tl.log(1.0 + tl.exp(product))" in (tmp_path / "mirage_out/softplus/best.py").read_text()


@pytest.mark.usefixtures("blocks")
def test_an_op_without_its_rule_file_is_one_line(tmp_path: Path) -> None:
    done = run("optimize", "softplus.py", folder=tmp_path)
    assert done.returncode == 2
    assert "no loaded theory declares" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(GraphError, match="'exp' stands already"):
        register_op("exp", numbers=lambda xp, x: x, exactly=lambda x: x, triton="{x}", torch="{x}")
    with pytest.raises(GraphError, match="takes one operand"):
        register_op("two", numbers=lambda xp, x, y: x, exactly=lambda x, y: x, triton="{x}", torch="{x}")
