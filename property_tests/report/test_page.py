"""report.html: one file that a browser shows without a complaint, and that says what the report says."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.report_sections import PartitionSummary, Search
from mirage_eg.pipeline.run.result import Result
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.report.funnel import FunnelGroup, groups
from mirage_eg.report.page import report_page
from mirage_eg.search import enumerator
from mirage_eg.search.prune_reasons import STAGES
from property_tests.support.command import start_command

PROGRAM = WORKLOADS["lora"](1)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of the command line leaves."""
    out = tmp_path_factory.mktemp("report")
    words = ["optimize", "lora", "--top", "2", "--jobs", "1", "--device", "cpu", "--out"]
    code, printed, error = start_command(*words, out, "--trace", out / "trace.jsonl")
    assert (code, error) == (0, "")
    assert str(out / "lora" / "report.html") in printed
    header, *sample = map(json.loads, (out / "trace.jsonl").read_text().splitlines())
    assert header["candidates"] and sample
    return out / "lora"


@pytest.fixture(scope="module")
def result() -> Result:
    """The same run in this process."""
    return optimize("lora", PROGRAM, Options(top=2, jobs=1, device="cpu", cache=False))


@pytest.fixture(scope="module")
def report(result: Result) -> RunReport:
    return result.report


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


def test_the_page_of_a_second_run_differs_in_its_last_section_alone(result: Result, page: str) -> None:
    best = result.candidates[0]
    again = report_page(result.report, PROGRAM, best.graph, best.source)
    first, second = (text.split('<section id="run">') for text in (page, again))
    assert first[0] == second[0] and len(first) == len(second) == 2


def in_parts(report: RunReport) -> RunReport:
    """The report, as if other segments than the whole program had been searched."""
    found = report.search
    partition = replace(report.partition, visited=found.visited, pruned=found.pruned, structures=found.structures)
    return replace(report, partition=partition)


def test_every_number_of_the_funnel_is_the_reports(report: RunReport, page: str) -> None:
    assert all(f">{step.count:,}</text>" in page for group in groups(report) for step in group.steps if step.count)
    report = in_parts(report)
    whole, parts, finalists = groups(report)
    both: tuple[tuple[FunnelGroup, Search | PartitionSummary, int], ...] = (
        (whole, report.search, report.verify.structures_rejected + report.verify.structures_overflowing),
        (parts, report.partition, 0),
    )
    for group, searched, rejected in both:
        counts = {step.label: step.count for step in group.steps if not step.pruned}
        assert counts["states visited"] == searched.visited > 0
        pruned = sum(step.count for step in group.steps if step.pruned)
        assert pruned == sum(searched.pruned.values()) + rejected > 0
    counts = {step.label: step.count for step in finalists.steps}
    tried = sum(it.compiled is True for it in report.mugraphs)
    assert 0 < counts["compiled, where it may be the first"] == tried
    assert counts["timed on a GPU"] == 0


def test_the_funnel_of_a_partitioned_program_is_that_of_its_segments(report: RunReport) -> None:
    empty = replace(report.search, visited=0, pruned={}, structures=0, split_reductions=0, instances=0)
    parts, finalists = groups(replace(in_parts(report), search=empty))
    assert (parts, finalists) == groups(in_parts(report))[1:]
    assert len(groups(report)) == 3  # the first plan searches what is between products of the library


def test_every_prune_reason_has_an_explanation_in_the_funnel() -> None:
    source = (Path(enumerator.__file__)).read_text(encoding="utf-8")
    reasons = set(re.findall(r'reason = "([^"]+)"', source))
    assert len(reasons) >= 6 and reasons <= set(STAGES)


def test_a_page_of_hostile_names_shows_them_as_text(result: Result, report: RunReport) -> None:
    hostile = "<script>alert(1)</script>&amp;"
    named = replace(report, program=hostile, notes=(hostile,))
    shown = report_page(named, PROGRAM, result.candidates[0].graph, f'"""{hostile}"""\n')
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
