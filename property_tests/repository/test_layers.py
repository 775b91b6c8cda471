"""Who may import whom: docs/architecture.md's table, held to by every module of every room."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("ir", "rules", "backends", "mirage_eg")
MAY_IMPORT = {
    "ir": {"ir"},
    "rules": set[str](),
    "backends": {"backends", "ir"},
    "mirage_eg": {"mirage_eg", "backends", "ir", "rules"},
}
NOT_PACKAGES = ("property_tests", "benchmarks", "notebooks", "ir", "rules", "backends")  # folders of the repository
MODULES = [(room, path) for room in ROOMS for path in sorted((ROOT / room).glob("*.py"))]


def imports(source: str) -> Iterator[str]:
    """Every module that a source imports, wherever the import stands."""
    for item in ast.walk(ast.parse(source)):
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, "a relative import"
            if item.module == "mirage_eg":
                yield from (f"mirage_eg.{alias.name}" for alias in item.names)
            else:
                yield item.module or ""


def room_of(module: str) -> str | None:
    """The room that an imported module stands in; None for what is not ours."""
    parts = module.split(".")
    if parts[0] != "mirage_eg":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "mirage_eg"


def broken(room: str, source: str) -> list[str]:
    """The imports of a source that its room may not have."""
    wrong = []
    for module in imports(source):
        other = room_of(module)
        outside = module.split(".")[0]
        foreign = outside not in sys.stdlib_module_names
        if other is not None:
            wrong += [module] if other not in MAY_IMPORT[room] else []
        elif outside in NOT_PACKAGES or (foreign and room in ("ir", "rules")) or (outside == "egglog" and room != "mirage_eg"):
            wrong.append(module)
    return wrong


@pytest.mark.parametrize(("room", "path"), MODULES, ids=[f"{room}-{path.stem}" for room, path in MODULES])
def test_a_module_imports_only_what_its_room_may(room: str, path: Path) -> None:
    assert broken(room, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("ir", "import numpy"),
        ("ir", "from mirage_eg.backends.evaluator.finite_field import FieldAlgebra"),
        ("ir", "def late():\n    import triton"),
        ("backends", "from egglog import bindings"),
        ("backends", "from mirage_eg.search.search import search"),
        ("backends", "from mirage_eg import search"),
        ("mirage_eg", "from property_tests import graphs"),
        ("mirage_eg", "import ir.graph"),
    ],
)
def test_an_import_that_no_room_allows_is_seen(room: str, source: str) -> None:
    assert broken(room, source)


def test_the_table_of_the_page_is_the_one_that_is_tested() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+?) \|$", page, re.MULTILINE))
    assert set(rows) == set(ROOMS)
    for room, allowed in rows.items():
        assert set(re.findall(r"`(\w+)`", allowed)) == MAY_IMPORT[room] - {room}
    assert "egglog" in rows["backends"]


def test_only_the_command_line_prints() -> None:
    printing = {
        path.stem
        for _, path in MODULES
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == "print"
    }
    assert {name for name in printing if not name.startswith("cli")} <= {
        "bench_row",
        "stopping",
        "terminal",
    }  # a program of its own, and what commands print with
