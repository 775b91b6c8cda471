"""Pages can be read once: short sentences, short pages but for reference and measurements, and no figure without its script."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "rules" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
SENTENCE, PAGE = 35, 1500  # words, at most
LONG = ("docs/reference/", "docs/measurements/")  # pages that are looked up, not read from start to end

_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_END = re.compile(r"(?<=[.!?])[\"”)*]*\s+|:[)*]*\s+(?=[\"“(*]*[A-ZΣµ0-9])")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs, items and table cells of a page, without blocks, comments and headings; code in a line is one word."""
    prose = re.sub(r"(?s)```.*?```|<!--.*?-->", "\n\n", text)
    prose = re.sub(r"`[^`]*`(?:,\s+`[^`]*`)*", "code", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose))
    open_lines: list[str] = []
    for line in [*prose.splitlines(), ""]:
        row, bounds = line.lstrip().startswith("|"), not line.strip() or line.startswith(("#", "    mirage-eg", "    python"))
        if row or bounds or _ITEM.match(line):
            yield " ".join(open_lines)
            open_lines = []
        if row:
            yield from re.split(r"(?<!\\)\||<br>", line)
        elif not bounds:
            open_lines.append(_ITEM.sub("", line, count=1))


def long_sentences(text: str) -> list[str]:
    """The sentences of more than SENTENCE words; a colon before a capital ends one."""
    sentences = (sentence for paragraph in paragraphs(text) for sentence in _END.split(paragraph) if sentence)
    return [it for it in sentences if sum(bool(re.search(r"\w", word)) for word in it.split()) > SENTENCE]


@pytest.mark.parametrize("name", NAMES)
def test_no_sentence_of_a_page_is_too_long(name: str) -> None:
    assert long_sentences(read(name)) == [], f"{name}: say it in two sentences, or in a table"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(LONG)])
def test_no_page_that_is_read_from_start_to_end_is_too_long(name: str) -> None:
    assert len(read(name).split()) <= PAGE, f"{name}: divide the page, or move figures to docs/measurements"


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_rests_on_a_script_that_is_not_kept(name: str) -> None:
    assert re.findall(r"(?i)throw-?away|script\w*[^.]{0,40}\bnot\s+kept", read(name)) == []


def test_the_readme_fits_a_few_screens() -> None:
    assert len(read("README.md").splitlines()) <= 150


def test_a_long_sentence_is_found_in_text_items_and_cells() -> None:
    long, short = "One " + "word " * SENTENCE + "more.", "One " + "word " * (SENTENCE - 2) + "more."
    for page in ("{} Next.", "- {}\n- Next.", "| a | {} |\n", "1. *Note.* {}", "> {}", "`code` and {}", "## Head\n{}"):
        assert len(long_sentences(page.format(long))) == 1, page
        assert long_sentences(page.replace("`code` and ", "").format(short)) == [], page
    assert long_sentences(f"```text\n{long}\n```\n<!-- {long} -->\n# {long}\n") == []
