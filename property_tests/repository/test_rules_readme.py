"""rules/README.md: its axioms are sound and found useful, its op from outside is fused and right."""

import re
import shlex
from pathlib import Path

import pytest

from mirage_eg.frontend.custom_op import register_op
from mirage_eg.ir.errors import GraphError
from property_tests.support.command import start_command

README = Path(__file__).parents[2] / "rules" / "README.md"


COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code blocks of the page, written to the files that it names."""
    found = re.findall(r"```(\w+)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    sources = [text for language, text in found if language in ("egg", "python")]
    folder = tmp_path_factory.mktemp("readme")
    for name, text in zip(("my_axioms.egg", "log1pexp.py", "log1pexp.egg"), sources, strict=True):
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def outputs(folder: Path) -> list[tuple[str, str]]:
    """Each command of the page, without its remark, and what it prints, run in the page's order."""
    results = []
    for line in COMMANDS:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "mirage-eg"
        code, out, err = start_command(*arguments, folder=folder)
        assert (code, err) == (0, ""), line
        results.append((" ".join(arguments), out))
    return results


@pytest.mark.slow
def test_every_command_of_the_page_ends_well_and_both_files_are_sound(outputs: list[tuple[str, str]]) -> None:
    assert len(outputs) == 5
    checked = [text for command, text in outputs if command.startswith("rules check")]
    assert len(checked) == 2 and all(text.endswith("sound\n") for text in checked)


@pytest.mark.slow
def test_the_axioms_of_the_page_make_something_newly_findable(outputs: list[tuple[str, str]]) -> None:
    [seen] = [text for command, text in outputs if command.startswith("rules impact")]
    assert "rmsnorm: newly found" in seen


@pytest.mark.slow
def test_the_op_of_the_page_is_fused_proved_and_written(outputs: list[tuple[str, str]], folder: Path) -> None:
    [done] = [text for command, text in outputs if command.startswith("optimize log1pexp.py")]
    assert "one product" in done and "proved" in done
    assert "tl.exp(product)" in (folder / "mirage_out/log1pexp/best.py").read_text()


def test_the_op_of_the_page_is_fused_without_a_rule_file(folder: Path) -> None:
    code, out, _ = start_command("optimize", "log1pexp.py", "--top", "1", "--out", "without_laws", folder=folder)
    assert code == 0 and "one product" in out


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(GraphError, match="has an op 'exp' already"):
        register_op("exp", numbers=lambda xp, x: x, exactly=lambda x: x, triton="{x}", torch="{x}")
    with pytest.raises(GraphError, match="for arity 1: missing"):
        register_op("two", numbers=lambda xp, x, y: x, exactly=lambda x, y: x, triton="{x}", torch="{x}")
