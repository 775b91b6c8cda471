"""report.html: one file that a browser shows without a complaint, and that says what the report says."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir import serialize
from mirage_eg.report.funnel import groups
from mirage_eg.report.page import report_page
from mirage_eg.search import enumerator
from mirage_eg.search.stages import STAGES

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of the command line leaves."""
    out = tmp_path_factory.mktemp("report")
    command = [
        sys.executable,
        "-m",
        "mirage_eg",
        "optimize",
        "lora",
        "--top",
        "2",
        "--jobs",
        "1",
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    assert str(out / "lora" / "report.html") in done.stdout
    return out / "lora"


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


class Reader(HTMLParser):
    """Tags that are open, and all attributes that name another file."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.foreign += [f"{tag} {key}={value}" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]
        self.foreign += [tag] if tag in ("script", "link", "iframe", "object", "embed") else []
        if tag not in ("meta", "br", "hr", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(page: str) -> None:
    reader = Reader()
    reader.feed(page)
    assert (reader.open, reader.foreign) == ([], [])
    assert not re.search(r"@import|url\(", page)


def test_the_same_report_gives_the_same_page(folder: Path, report: dict[str, Any], page: str) -> None:
    best, source = serialize.load(folder / "best.json"), (folder / "best.py").read_text()
    assert report_page(report, WORKLOADS["lora"](1), best, source) == page


def test_every_number_of_the_funnel_is_the_reports(report: dict[str, Any], page: str) -> None:
    whole, parts, finalists = groups(report)
    checked = report["verify"]
    for group, searched, rejected in (
        (whole, report["search"], checked["structures_rejected"]),
        (parts, report["partition"], 0),
    ):
        counts = {step.label: step.count for step in group.steps if not step.pruned}
        assert counts["states visited"] == searched["visited"] > 0
        pruned = sum(step.count for step in group.steps if step.pruned)
        assert pruned == sum(searched["pruned"].values()) + rejected > 0
    counts = {step.label: step.count for step in finalists.steps}
    assert counts["compiled"] == len(report["mugraphs"])
    assert counts["timed on a GPU"] == 0
    assert all(f">{step.count:,}</text>" in page for group in groups(report) for step in group.steps if step.count)


def test_the_funnel_of_a_partitioned_program_is_that_of_its_segments(report: dict[str, Any]) -> None:
    empty = report["search"] | {"visited": 0, "pruned": {}, "structures": 0, "split_reductions": 0, "instances": 0}
    parts, finalists = groups(report | {"search": empty})
    assert (parts, finalists) == groups(report)[1:]


def test_every_prune_reason_has_an_explanation_in_the_funnel() -> None:
    source = (Path(enumerator.__file__)).read_text(encoding="utf-8")
    reasons = set(re.findall(r'reason = "([^"]+)"', source))
    assert len(reasons) >= 6 and reasons <= set(STAGES)


def test_a_page_of_hostile_names_shows_them_as_text(folder: Path, report: dict[str, Any]) -> None:
    hostile = "<script>alert(1)</script>&amp;"
    best, source = serialize.load(folder / "best.json"), f'"""{hostile}"""\n'
    shown = report_page(report | {"program": hostile, "notes": [hostile]}, WORKLOADS["lora"](1), best, source)
    assert "<script" not in shown


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: Debian's package chromium")
def test_chromium_shows_funnel_drawing_and_source_without_an_error(folder: Path, tmp_path: Path) -> None:
    shown, said = browse(folder / "report.html", tmp_path)
    assert "CONSOLE" not in said
    sections = dict(re.findall(r'<section id="([\w-]+)">(.*?)</section>', shown, re.DOTALL))
    assert "search funnel" in sections["search"] and "states visited" in sections["search"]
    assert "block graph" in sections["the-best-µgraph"] and "matmul" in sections["the-best-µgraph"]
    assert "triton" in sections["triton-source"] and "tl.dot" in re.sub("<[^>]*>", "", sections["triton-source"])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: Debian's package chromium")
def test_what_watches_for_errors_sees_one(tmp_path: Path) -> None:
    (tmp_path / "broken.html").write_text("<!doctype html><title>x</title><script>nothing.there()</script>")
    _, said = browse(tmp_path / "broken.html", tmp_path)
    assert "CONSOLE" in said and "nothing is not defined" in said


def browse(page: Path, profile: Path) -> tuple[str, str]:
    """The page's document after it was loaded, and what the browser said."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={profile / 'profile'}"]
    done = subprocess.run([CHROMIUM, *flags, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr
