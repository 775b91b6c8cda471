"""Wheel, sdist and README hold what they promise: the folders at the top arrive as mirage_eg.ir, .rules and .backends."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import mirage_eg

ROOT = Path(__file__).parents[2]
LINKS = ("ir", "rules", "backends")
DATA = {".py", ".egg", ".md", ".typed", ".js", ".LICENSE"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def build(source: Path, target: Path, kind: str) -> Path:
    """Build a wheel or an sdist with the setuptools at hand; pip would fetch its own."""
    target.mkdir(parents=True, exist_ok=True)
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


def copy_checkout(target: Path) -> Path:
    """The checkout without what is not tracked; links stay links."""
    ignore = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "mirage_out")
    shutil.copytree(ROOT, target, symlinks=True, ignore=ignore)
    return target


def package_files() -> dict[str, bytes]:
    """What an install must hold, by name, from the folders at the top."""
    package = ROOT / "mirage_eg"
    files = {path: str(path.relative_to(ROOT)) for path in package.glob("*") if path.is_file()}
    for folder in package.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            files |= {path: str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file()}
    for folder in LINKS:
        files |= {path: f"mirage_eg/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*") if path.is_file()}
    return {name: path.read_bytes() for path, name in files.items() if path.suffix in DATA}


def wheel_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build(copy_checkout(folder / "copy"), folder / "dist", "wheel")


def test_the_wheel_holds_every_module_and_every_rule_file_and_nothing_else(wheel: Path) -> None:
    got, wanted = wheel_files(wheel), package_files()
    assert sum(name.endswith(".egg") for name in wanted) > 5
    assert got.keys() == wanted.keys()
    assert got == wanted


def test_a_wheel_from_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    sdist = build(copy_checkout(tmp_path / "copy"), tmp_path / "dist", "sdist")
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not before Python 3.11.4
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **safely)
    [source] = (tmp_path / "unpacked").iterdir()
    assert wheel_files(build(source, tmp_path / "again", "wheel")) == wheel_files(wheel)


def test_an_install_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    code = """
from importlib import resources
import mirage_eg, mirage_eg.ir.graph
folders = [folder for folder in resources.files("mirage_eg.rules").iterdir() if folder.is_dir()]
theories = [file.name for folder in folders for file in folder.iterdir()]
print(mirage_eg.__file__, sum(name.endswith(".egg") for name in theories), mirage_eg.Graph is mirage_eg.ir.graph.Graph)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    place, rules, one_class = done.stdout.split()
    assert Path(place) == tmp_path / "site" / "mirage_eg" / "__init__.py"
    assert int(rules) == sum(name.endswith(".egg") for name in package_files())
    assert one_class == "True"


@pytest.mark.parametrize("folder", LINKS)
def test_folders_at_the_top_are_linked_relatively(folder: str) -> None:
    assert os.readlink(ROOT / "mirage_eg" / folder) == f"../{folder}"


def test_the_list_of_packages_is_complete() -> None:
    files = [name for name in package_files() if name.endswith("/__init__.py")]
    folders = {name.removesuffix("/__init__.py").replace("/", ".") for name in files}
    with_data = {f"mirage_eg.{'.'.join(path.parent.relative_to(ROOT).parts)}" for path in (ROOT / "rules").rglob("*.egg")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders >= with_data


def test_git_keeps_rule_files() -> None:
    assert "*.egg" not in (ROOT / ".gitignore").read_text().splitlines()


def test_all_files_agree_on_the_version() -> None:
    version = PROJECT["project"]["version"]
    assert mirage_eg.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_torch_is_needed_by_the_importer_and_by_tests_alone() -> None:
    extras = PROJECT["project"]["optional-dependencies"].items()
    core = [
        *PROJECT["project"]["dependencies"],
        *(it for name, extra in extras for it in extra if name not in ("torch", "onnx")),
    ]
    assert not any(re.match(r"torch\b", requirement) for requirement in core)
    assert any(re.match(r"torch==", requirement) for requirement in PROJECT["dependency-groups"]["test"])


def test_readme_has_the_two_commands_in_one_line_each() -> None:
    commands = re.findall(r"```sh\n(python3 -m venv .*)\n```", (ROOT / "README.md").read_text())
    assert len(commands) == 2
    main_job, tests = commands
    assert main_job.endswith("mirage-eg optimize rmsnorm")
    assert all(tool in tests for tool in ("ruff format --check", "ruff check", "mypy", "pytest"))


def test_the_snippet_of_the_readme_is_python() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    compile(snippet, "README.md", "exec")
    assert len(snippet.splitlines()) <= 10


def test_the_licence_is_the_whole_apache_2_0() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text and len(text.splitlines()) > 190
