"""docs/ and README name what exists: commands, options, scripts, paths, modules, messages; what is generated is current."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from mirage_eg.cli.main import app
from property_tests.support.command import run_command
from property_tests.support.pages import GIVEN, NAMES, ROOT, read
from property_tests.support.scripts import script


@cache
def known_options() -> dict[tuple[str, ...], set[str]]:
    """The options of every command."""
    return {
        path: {option for it in command.params for option in it.opts}
        for path, command in script("docs/build.py").commands(_group(), ())
    }


def _group() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_that_a_page_names_in_passing_exists_with_its_options(name: str) -> None:
    for words in re.findall(r"`mirage-eg ([^`]+)`", read(name)):
        parts = words.split()
        path = next((tuple(parts[:length]) for length in (2, 1) if tuple(parts[:length]) in known_options()), None)
        assert path is not None or parts[0] in ("rules", "bench", "--help"), f"{name}: mirage-eg {words}"
        given = {part for part in parts if part.startswith("--")} - {"--help"}
        assert path is None or given <= known_options()[path], f"{name}: mirage-eg {words}"


@pytest.mark.parametrize("name", NAMES)
def test_every_script_that_a_page_names_in_passing_exists_with_its_options(name: str) -> None:
    for words in re.findall(r"`python ((?:benchmarks|docs|notebooks)/[^`]+)`", read(name)):
        script, *given = words.split()
        assert (ROOT / script).is_file(), f"{name}: python {words}"
        options = {part for part in given if part.startswith("--")}
        shown = "" if not options else _help(script)
        assert all(option in shown for option in options), f"{name}: python {words}"


@cache
def _help(script: str) -> str:
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_generated_is_what_is_committed() -> None:
    pages = script("docs/build.py").pages()
    assert len(pages) > 3
    for name, text in pages.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"docs/{name} is old: python docs/build.py"


@pytest.mark.slow
def test_the_figures_show_what_optimize_finds_today() -> None:
    recorded = script("docs/build.py").recorded()
    assert recorded
    for name, text in recorded.items():
        assert read(f"docs/figures/{name}") == text, f"docs/figures/{name} is old: python docs/build.py --optimize"


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    page = read("docs/reference/command_line.md")
    for path, options in known_options().items():
        section = page[page.index(f"## mirage-eg {' '.join(path)}\n") :].split("\n## ")[0]
        assert all(f"`{option}`" in section for option in options - {"--help"} if option.startswith("--"))


def test_every_term_of_the_glossary_is_stated_once_and_pages_link_to_it() -> None:
    terms = re.findall(r"(?m)^### (.*)$", read("docs/reference/glossary.md"))
    links = [link for name in NAMES for link in re.findall(r"glossary\.md#([\w-]+)", read(name))]
    assert len(terms) == len(set(terms)) > 50
    assert len(set(links)) > 25


MISTAKEN = {
    "empty.py": "x = 1\n",
    "shapes.py": "import mirage_eg as mi\n\ndef program():\n    graph = mi.new_kernel_graph()\n"
    "    graph.matmul(graph.new_input((16, 64), name='X'), graph.new_input((32, 64), name='W'))\n    return graph\n",
    "unbound.egg": "; domain: indexed\n(rewrite (Div x (Sqroot y)) (Mul x (Rsqrt y)))\n",
}


@pytest.mark.parametrize(
    "words",
    [
        ["optimize", "lora", "--target", "sm_70"],
        ["optimize", "lora", "--device", "cuda"],
        ["optimize", "rmsnrom"],
        ["optimize", "empty.py"],
        ["optimize", "shapes.py"],
        ["rules", "check", "unbound.egg"],
        ["verify", "lora", str(ROOT / "docs" / "figures" / "rmsnorm.json")],
    ],
)
def test_the_errors_of_the_faq_are_those_that_a_person_meets(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in MISTAKEN.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, _, err = run_command(capsys, *words)
    quoted = [
        re.split(r"…|; ", text)[0].replace("my_layer.py", "") for text in re.findall(r"\*\*`(.*?)`", read("docs/how_to/faq.md"))
    ]
    if "cuda" in words and code == 0:
        pytest.skip("there is a GPU here")
    assert code == 2
    assert any(len(part) > 12 and part.strip(": ") in err for part in quoted), err


WRITTEN = (  # by `optimize` and `rules impact`
    *("best.py", "best.json", "report.json", "report.html", "checkpoint.jsonl"),
    "impact.json",
)
OUTSIDE = ("mirage_out/", "mirage/", "candidates/", "DIR/", "OUT/", "~/", "…/")  # output folders; published checkpoints
TOPS = ("ir", "rules", "backends", "mirage_eg", "property_tests", "benchmarks", "docs", "notebooks")
PATH = re.compile(r"`([\w./~…-]+(?:/|\.(?:py|egg|md|json|jsonl|gz|svg|ipynb|toml|yml)))`")


def missing_names(text: str, page: Path) -> list[str]:
    """Paths and dotted names in backticks that are in neither the repository, nor a code block, nor the output of a command."""
    code, prose = "".join(re.findall(r"(?s)```.*?```", text)), re.sub(r"(?s)```.*?```", "", text)
    paths = [path for path in PATH.findall(prose) if path not in (*WRITTEN, *GIVEN) and not path.startswith(OUTSIDE)]
    paths = [path for path in paths if not Path(path).stem.isupper()]  # GRAPH.json: a placeholder
    names = re.findall(rf"`((?:{'|'.join(TOPS)})(?:\.\w+)+)`", prose)
    return [path for path in paths if path not in code and not (ROOT / path).exists() and not (page.parent / path).exists()] + [
        name for name in names if not PATH.fullmatch(f"`{name}`") and not _resolves(name)
    ]


def _resolves(name: str) -> bool:
    """Whether a dotted name is a module of ours or an attribute of one."""
    parts = name.removeprefix("mirage_eg.").split(".")
    value: Any = importlib.import_module("mirage_eg")
    for length, part in enumerate(parts, 1):
        if isinstance(value, ModuleType) and hasattr(value, "__path__"):
            with suppress(ModuleNotFoundError):
                value = importlib.import_module(".".join(("mirage_eg", *parts[:length])))
                continue
        value = getattr(value, part, None)
    return value is not None


def test_a_wrong_path_or_module_on_a_page_is_found() -> None:
    wrong = "`ir/grahp.py` `combine.py` `mirage_eg.search.serach` `backends.triton.emit.no_such_name` `rules/indexd/`"
    assert len(missing_names(wrong, ROOT / "README.md")) == 5
    right = (
        "`ir/graph.py` `mirage_eg.search.structure_search` `backends.triton.emit.emit` `rules/indexed/` `best.py` `report.cuts`"
    )
    assert missing_names(right, ROOT / "README.md") == []


@pytest.mark.parametrize("name", NAMES)
def test_every_path_and_module_on_a_page_exists(name: str) -> None:
    assert missing_names(read(name), ROOT / name) == []


QUOTED: dict[str, Callable[[], str]] = {
    "no loaded theory declares": lambda: (
        read("mirage_eg/egraph/oracle.py") + read("mirage_eg/egraph/expression.py") + read("mirage_eg/egraph/rulebook.py")
    ),
    "ops are more than the": lambda: "".join(path.read_text(encoding="utf-8") for path in (ROOT / "mirage_eg").rglob("*.py")),
    "no fused kernel was found": lambda: read("mirage_eg/pipeline/finalists.py"),
    "no Dask scheduler answers": lambda: read("mirage_eg/pipeline/run/executors.py"),
    "not sound": lambda: read("mirage_eg/cli/rules.py"),
    "is of another run": lambda: read("mirage_eg/pipeline/run/checkpoint.py"),
    "this µGraph has library kernels": lambda: read("backends/runtime/calls.py"),
}


@pytest.mark.parametrize("words", QUOTED)
def test_the_other_messages_of_the_faq_are_in_the_code(words: str) -> None:
    assert words in read("docs/how_to/faq.md") and words in QUOTED[words]()
