"""`mirage-eg optimize`: the files and lines of a run, with a pipeline in the place of the real one."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from mirage_eg.frontend.load import load_program
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import from_json
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict
from property_tests.support.command import PROGRAM, refused, run_command

if TYPE_CHECKING:
    from mirage_eg.verify.verdict import Observer

EQUAL = Verdict(Equality.EQUAL, 2, 1037087, 518543, 0, None, "exponentials", 1.0)


@dataclass(frozen=True)
class Compiled:
    """What the command line reads of a compiled µGraph."""

    ok: bool = True
    shared_memory: int | None = 4096
    registers: int | None = 64
    error: str | None = None
    tried: bool = True


COMPILED = Compiled()
ROUNDED = FloatCheck(True, 1e-4, 1e-2, None)


@dataclass(frozen=True)
class Candidate:
    """What the command line reads of a ranked µGraph."""

    graph: Graph
    source: str
    predicted_us: float = 12.34
    measured_us: float | None = None
    verdict: Verdict = EQUAL
    float_check: FloatCheck = ROUNDED
    compile: Compiled = COMPILED
    proved: bool = True
    kernels: int = 1


@dataclass(frozen=True)
class Report:
    """What the command line reads of a `RunReport`."""

    program: str
    seed: int
    best: Mapping[str, object] = field(default_factory=lambda: {"kernels": 1, "measured_us": None})
    seconds: float = nan
    notes: tuple[str, ...] = ()
    explanation: None = None
    regions: tuple[object, ...] = ()
    cache: str = "off"
    source: str | None = None
    rewriting: tuple[object, ...] = ()

    def written(self, source: str, best: str) -> "Report":
        return replace(self, source=source, best={**self.best, "source": best})

    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = plain(self)
        return data


@dataclass(frozen=True)
class Result:
    """What the command line reads of a run."""

    report: Report
    candidates: list[Candidate]


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """A pipeline in the place of the real one, which gives the program back `top` times; collects the options of its runs."""
    runs: list[Options] = []

    def optimize(
        name: str, program: Graph, options: Options, observer: "Observer", checkpoint: Path, resume: bool, **more: object
    ) -> Result:
        assert (checkpoint.name, resume) == ("checkpoint.jsonl", False)
        runs.append(options)
        observer("search", 1, None, "working")
        observer("search", 2, 2, "done")
        return Result(Report(name, options.seed), [Candidate(program, f"# source {rank}\n") for rank in range(options.top)])

    module = ModuleType("mirage_eg.pipeline.optimize")
    module.optimize = optimize  # type: ignore[attr-defined]
    module.Candidate = Candidate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mirage_eg.pipeline.optimize", module)
    monkeypatch.setattr("mirage_eg.report.page.report_page", lambda report, program, best, source: f"<h1>{report.program}</h1>")
    return runs


def test_optimize_writes_report_graphs_and_sources(
    pipeline: list[Options], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(
        capsys, "optimize", "good.py", "--top", "3", "--out", "results", "--seed", "7", "--rules", "notes.txt"
    )
    assert (code, err) == (0, "")
    assert "library silu, matmul" in out and "Triton source: results/good/best.py" in out
    assert pipeline == [Options(top=3, seed=7, rules=("notes.txt",))]
    written = {
        str(path.relative_to(folder / "results/good")) for path in (folder / "results/good").rglob("*") if path.is_file()
    }
    candidates = {f"candidates/{rank:02}.{suffix}" for rank in (1, 2, 3) for suffix in ("json", "py")}
    assert written == {"report.json", "report.html", "best.json", "best.py"} | candidates
    assert from_json((folder / "results/good/best.json").read_bytes()) == load_program("good.py")[1]
    report = json.loads((folder / "results/good/report.json").read_text())
    assert report["best"]["source"] == "results/good/best.py"
    assert report["seconds"] is None


def test_optimize_prints_one_json_line_and_nothing_else(
    pipeline: list[Options], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(capsys, "optimize", "good.json", "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert json.loads(out) == json.loads((folder / "mirage_out/good/report.json").read_text())


def test_candidates_of_an_earlier_run_do_not_stay(
    pipeline: list[Options], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mirage_out/good/candidates").mkdir(parents=True)
    (folder / "mirage_out/good/candidates/mine.txt").write_text("not ours")
    for top in (5, 2):
        assert run_command(capsys, "optimize", "good.py", "--top", str(top))[0] == 0
    names = sorted(path.name for path in (folder / "mirage_out/good/candidates").iterdir())
    assert names == ["01.json", "01.py", "02.json", "02.py", "mine.txt"]


def test_a_program_that_prints_does_not_spoil_the_json(
    pipeline: list[Options], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loud.py").write_text(PROGRAM.replace("def program():", "print('loaded')\ndef program():\n    print('called')"))
    code, out, err = run_command(capsys, "optimize", "loud.py", "--json")
    assert (code, err) == (0, "loaded\ncalled\n")
    assert json.loads(out)["program"] == "loud"


def test_a_failure_of_the_pipeline_writes_nothing(
    pipeline: list[Options], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> Result:
        raise RuleError("my.egg:3: Unbound symbol z")

    monkeypatch.setattr(sys.modules["mirage_eg.pipeline.optimize"], "optimize", fail)
    assert refused(["optimize", "good.py"], capsys, folder) == "mirage-eg: my.egg:3: Unbound symbol z\n"


def test_two_files_of_one_name_do_not_share_a_folder(
    folder: Path, pipeline: list[Options], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "good.py").write_text(PROGRAM)
    (folder / "other").mkdir()
    (folder / "other" / "good.py").write_text(PROGRAM.replace("silu", "relu"))
    assert run_command(capsys, "optimize", "good.py", "--top", "1")[0] == 0
    written = (folder / "mirage_out/good/report.json").read_bytes()
    code, out, err = run_command(capsys, "optimize", "other/good.py", "--top", "1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "holds the results of" in err and "try: another --out" in err
    assert (folder / "mirage_out/good/report.json").read_bytes() == written
    assert run_command(capsys, "optimize", str(folder / "good.py"), "--top", "1")[0] == 0  # the same file by another path
    assert run_command(capsys, "optimize", "other/good.py", "--top", "1", "--out", "elsewhere")[0] == 0
    (folder / "good.py").unlink()  # moved, say
    assert run_command(capsys, "optimize", "other/good.py", "--top", "1")[0] == 0


def test_a_file_named_like_a_workload_does_not_take_its_folder(
    folder: Path, pipeline: list[Options], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(capsys, "optimize", "rmsnorm", "--top", "1")[0] == 0
    (folder / "rmsnorm.py").write_text(PROGRAM)
    code, _, err = run_command(capsys, "optimize", "rmsnorm.py", "--top", "1")
    assert code == 2 and "holds the results of workload rmsnorm" in err
