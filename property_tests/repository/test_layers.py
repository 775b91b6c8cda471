"""Who may import whom: the table of `support/layers.py`, held to by every import of every module."""

import ast
import sys
from functools import cache

import pytest

from property_tests.support.layers import MAY_IMPORT, ROOT, Import, circles, forbidden, imports_of, modules, room_of

MODULES = modules()
SOURCES = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
NOT_PACKAGES = ("property_tests", "benchmarks", "notebooks", "ir", "rules", "backends")  # folders of the repository
PRINTING = {
    "mirage_eg.lab.bench.gpu_row",
    "mirage_eg.pipeline.run.stopping",
}  # a program of its own; the last line of a stopped one


@cache
def all_imports() -> list[Import]:
    return [it for name, source in SOURCES.items() for it in imports_of(name, source, MODULES)]


def folder_of(module: str) -> str:
    return module.rpartition(".")[0].replace("mirage_eg.ir.op", "mirage_eg.ir")  # the rows of the op table, in files by subject


def graph_of(imports: list[Import]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for it in imports:
        if it.target in MODULES and it.target != "mirage_eg":
            found.setdefault(it.source, set()).add(it.target)
    return found


def test_no_import_is_forbidden() -> None:
    assert len(MODULES) > 200 and len(all_imports()) > 1500
    assert {room_of(name) for name in MODULES} - {"api", "backends"} <= set(MAY_IMPORT)
    assert forbidden(all_imports()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mirage_eg.ir.new", "from mirage_eg.backends.evaluator.finite_field import FieldAlgebra"),
        ("mirage_eg.ir.new", "def late():\n    import triton"),
        ("mirage_eg.backends.evaluator.new", "from mirage_eg.backends.triton import emit"),
        ("mirage_eg.backends.triton.new", "from egglog import bindings"),
        (
            "mirage_eg.verify.new",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mirage_eg.search import search",
        ),
        ("mirage_eg.optimizer.new", "from mirage_eg.pipeline.run.executors import Workers"),
        ("mirage_eg.report.new", "from mirage_eg.lab.bench.gpu import Summary"),
        ("mirage_eg.lab.new", "import mirage_eg.cli.main"),
        ("mirage_eg.search.new", "from mirage_eg import api"),
        ("mirage_eg.pipeline.new", "import typer"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert forbidden(imports_of(module, source, MODULES))


def test_files_and_rooms_import_each_other_in_no_circle() -> None:
    files = graph_of(all_imports())
    rooms: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    for source, targets in files.items():
        rooms.setdefault(room_of(source), set()).update(map(room_of, targets))
        folders.setdefault(folder_of(source), set()).update(map(folder_of, targets))
    del folders["mirage_eg"]  # `api` and `__main__`, which import from below, and `version`
    assert circles(files) == circles(rooms) == circles(folders) == []
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == ["a", "b", "c"]


def test_the_table_allows_no_circle_and_nothing_unused() -> None:
    expanded = {room: [other for other in MAY_IMPORT if other.startswith(names)] for room, names in MAY_IMPORT.items()}
    assert circles(expanded) == []
    used = {(room_of(it.source), room_of(it.target)) for it in all_imports() if it.target in MODULES}
    soon = {("transforms", name) for name in ("backends/evaluator", "backends/cost", "verify")}  # for graph substitutions
    for room, names in MAY_IMPORT.items() - {("cli", MAY_IMPORT["cli"])}:  # it may import everything
        unused = [name for name in names if not any(a == room and b.startswith(name) for a, b in used)]
        assert [(room, name) for name in unused if (room, name) not in soon] == []


def test_no_folder_of_the_repository_is_imported_as_a_package() -> None:
    wrong = [it for it in all_imports() if it.target.split(".")[0] in NOT_PACKAGES]
    foreign = [
        it for it in all_imports() if room_of(it.source) == "ir" and it.target.split(".")[0] not in sys.stdlib_module_names
    ]
    assert wrong == [] and all(it.target.startswith("mirage_eg.ir") for it in foreign)


def test_a_room_is_described_by_one_sentence_and_exports_nothing() -> None:
    for name, path in MODULES.items():
        if path.name == "__init__.py" and name != "mirage_eg":
            [sentence] = ast.parse(SOURCES[name]).body
            assert isinstance(sentence, ast.Expr) and ast.get_docstring(ast.parse(SOURCES[name])), path


def test_tests_mirror_the_rooms() -> None:
    folders = {path.parent.relative_to(ROOT) for path in MODULES.values()}
    known = {str(folder).removeprefix("mirage_eg/") for folder in folders} | {"api", "repository"}
    for path in (ROOT / "property_tests").rglob("test_*.py"):
        assert str(path.parent.relative_to(ROOT / "property_tests")) in known, path


def test_only_the_command_line_prints() -> None:
    printing = {
        name
        for name, source in SOURCES.items()
        if "print(" in source
        for item in ast.walk(ast.parse(source))
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == "print"
    }
    assert {name for name in printing if room_of(name) != "cli"} <= PRINTING
