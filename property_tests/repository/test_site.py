"""The site: it builds without a warning, has all public names, the notebooks, and figures that fit any page."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mirage_eg
from mirage_eg import testing
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.ops import OPS
from mirage_eg.ir.threadblock_graph import ThreadblockGraph
from mirage_eg.report import svg

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built with warnings as errors."""
    pytest.importorskip("material", reason="mkdocs-material is not installed (group docs)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_pages_build_without_warnings_and_load_nothing_external(site: Path) -> None:
    built = sorted(site.rglob("*.html"))
    assert len(built) >= 18
    loads = r"<(script|img|iframe|source)[^>]*\ssrc=\"?(https?:|//)"
    links = r"<link[^>]*rel=\"?(stylesheet|preconnect|preload)\"?[^>]*href=\"?(https?:|//)"
    for page in built:
        assert not re.search(f"{loads}|{links}", page.read_text(encoding="utf-8")), page
        assert 'class="mermaid"' not in page.read_text(encoding="utf-8"), f"{page}: the theme loads mermaid from elsewhere"
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles and not any(re.search(r"url\([\"']?(https?:)?//|@import", style) for style in styles)
    assert '<ol start="3">' in (site / "how_to" / "rules.html").read_text(encoding="utf-8")  # steps go on after a block of code
    assert "superoptimize" in (site / "reference" / "python.html").read_text(encoding="utf-8")


def test_every_page_has_one_place_in_one_of_the_four_parts() -> None:
    navigation = read("mkdocs.yml").partition("nav:\n")[2]
    named = re.findall(r"- (\S+\.md)$", navigation, re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(name for name in named if not name.startswith("notebooks/")) == sorted(pages)
    parts = {name.partition("/")[0] for name in named} - {"index.md", "notebooks", "measurements", "experiments"}
    assert parts == {"tutorials", "how_to", "explanation", "reference"}


def test_a_broken_link_does_not_build(site: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md)\n", encoding="utf-8")
    config = re.sub(r"(?s)nav:.*", "", read("mkdocs.yml").replace("hooks: [docs/site_hooks.py]", ""))
    config = config.replace("paths: [.]", f"paths: [{ROOT}]")
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode != 0 and "gone.md" in done.stdout + done.stderr


def test_every_public_name_and_op_of_the_builders_is_in_the_reference(site: Path) -> None:
    page = read("docs/reference/python.md")
    assert [name for name in mirage_eg.__all__ if f"`mi.{name}`" not in page] == []
    assert [name for name in testing.__all__ if f"`mirage_eg.testing.{name}`" not in page] == []
    shown = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for builder in (KernelGraph, ThreadblockGraph):
        methods = [name for name, it in inspect.getmembers(builder, inspect.isfunction) if not name.startswith("_")]
        assert len(methods) > 40
        place = f"{builder.__module__}.{builder.__qualname__}"
        assert [name for name in methods if f'id="{place}.{name}"' not in shown] == []
    tests = (site / "how_to" / "testing.html").read_text(encoding="utf-8")
    assert [name for name in testing.__all__ if f'id="mirage_eg.testing.{name}"' not in tests] == ["EVERY", "TAME"]


def test_every_op_and_constructor_has_a_row_on_its_page() -> None:
    ops, rules = read("docs/reference/ops.md"), read("docs/reference/rule_language.md")
    assert [name for name in OPS if f"| `{name}` |" not in ops] == []
    for domain in DOMAINS:
        assert [name for name in load_rules(domain).signatures if not re.search(rf"\({name}[ )]", rules)] == []


def test_notebooks_are_pages_of_the_site_with_their_outputs(site: Path) -> None:
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert len(notebooks) >= 5
    for path in notebooks:
        page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert (site / "notebooks" / path.name).read_bytes() == path.read_bytes()
        assert page.count("<svg") >= 1 and page.count('class="figure output"') >= 1
        assert f"notebooks/{path.stem}.html" in (site / "index.html").read_text(encoding="utf-8")


def test_figures_keep_their_size_scroll_and_follow_the_colours_of_the_page(site: Path) -> None:
    for page, figure in (
        ("index.html", "mugraph"),
        ("explanation/architecture.html", "house"),
        ("explanation/expression.html", "expression"),
    ):
        text = (site / page).read_text(encoding="utf-8")
        shown = re.findall(r'<div class="figure"[^>]*>(<svg .*?</svg>)', text, re.DOTALL)
        assert read(f"docs/figures/{figure}.svg").strip() in [it.strip() for it in shown]
        assert "figures.css" in text and not re.search(r'<img[^>]*src="[^"]*figures/', text)
    style = (site / "figures.css").read_text(encoding="utf-8")
    assert ".figure { overflow-x: auto" in style and "max-width: none" in style
    for name in svg.PALETTE:
        assert f'[data-md-color-scheme="slate"] .figure .mg-{name} ' in style
