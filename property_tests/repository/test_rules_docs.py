"""docs/how_to/rules.md: whoever follows it ends with laws that pass the check and with µGraphs that use them."""

import json
import re
import shlex
from pathlib import Path

import pytest

from property_tests.support.command import start_command

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "rules.md").read_text(encoding="utf-8")
FILES = re.findall(r"`(\w+\.(?:egg|py))`[^`]*?:[^`]*?\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page tells to write."""
    folder = tmp_path_factory.mktemp("docs")
    for name, text in FILES:
        (folder / name).write_text(text)
    assert [name for name, _ in FILES] == ["inverse.egg", "softsign.py", "softsign.egg"]
    return folder


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[str, str]:
    """What each command of the page prints, run in the page's order."""
    return {command: run(command, folder) for command in COMMANDS}


def run(command: str, folder: Path) -> str:
    program, *arguments = shlex.split(command)
    assert program == "mirage-eg"
    code, out, err = start_command(*arguments, folder=folder)
    assert (code, err) == (0, ""), command
    return out


# The commands are also those of rules/README.md (`test_rules_readme.py`), whose tests always run.
@pytest.mark.slow
def test_both_files_of_the_page_are_sound(folder: Path) -> None:
    checks = [command for command in COMMANDS if " check " in command]
    assert len(checks) == 2
    assert all(run(command, folder).endswith("sound\n") for command in checks)


@pytest.mark.slow
def test_every_command_of_the_page_ends_well(outputs: dict[str, str]) -> None:
    assert len(outputs) == 8


@pytest.mark.slow
def test_the_axiom_makes_a_structure_findable_and_the_best_mugraph_uses_it(outputs: dict[str, str], folder: Path) -> None:
    assert "rmsnorm: newly found" in outputs["mirage-eg rules impact inverse.egg rmsnorm --max-block-ops 7"]
    report = json.loads((folder / "mirage_out/rmsnorm/report.json").read_text())
    assert "inverse.egg" in report["theories"]
    best = (folder / "mirage_out/rmsnorm/best.json").read_text()
    assert '"rsqrt"' in best and report["mugraphs"][0]["proved"]


@pytest.mark.slow
@pytest.mark.usefixtures("outputs")
def test_the_op_is_fused_and_proved(folder: Path) -> None:
    report = json.loads((folder / "mirage_out/softsign/report.json").read_text())
    assert report["mugraphs"][0]["proved"]
    source = (folder / "mirage_out/softsign/best.py").read_text()
    kernel = source[source.index("@triton.jit") : source.index("# name")]
    assert "tl.dot(" in kernel
    assert "tl.abs(product)" in kernel


def test_what_python_imports_is_there() -> None:
    block = PAGE[PAGE.index("## From Python") :]
    imports = re.findall(r"from (\S+) import (\w+)", block)
    assert imports
    for module, name in imports:
        done = __import__(module, fromlist=[name])
        assert callable(getattr(done, name))
