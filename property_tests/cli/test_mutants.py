"""`mirage-eg mutants`: the page's command lists, verifies and writes; bad input is one line and exit code 2."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mirage_eg.backends.measure import timing
from mirage_eg.cli.main import app
from mirage_eg.ir import serialize
from mirage_eg.optimizer.measurement import JsonLine
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.command import run_command, start_command

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "partial_equivalence.md").read_text(encoding="utf-8")
PROGRAM, LOOP, NAMED, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def _program(folder: Path, body: str) -> str:
    lines = [
        "import mirage_eg as mi",
        "def program():",
        "    graph = mi.new_kernel_graph()",
        *(f"    {it}" for it in body.split("; ")),
    ]
    (folder / "given.py").write_text("\n".join([*lines, "    return graph"]), encoding="utf-8")
    return "given.py"


def test_the_command_of_the_page_lists_verifies_and_writes_mutants(tmp_path: Path) -> None:
    (tmp_path / "conv.py").write_text(PROGRAM, encoding="utf-8")
    code, out, err = start_command(
        "mutants", "conv.py", "--limit", "30", "--out", "mutants", "--every", "x:2", "--json", folder=tmp_path
    )
    assert code == 0, err
    record = json.loads(out)
    assert record["original"]["kernels"] == 1 and record["found"] >= len(record["mutants"])
    rows = {row["name"]: row for row in record["mutants"]}
    assert {row["verdict"] for row in rows.values()} == {"equal"}
    [moved] = [row for name, row in rows.items() if name == "x: n→h (2, inner to outer); result: h→n (2, outer to inner)"]
    assert (moved["rectangles"], moved["recomputed"], moved["wrong"]) == (2, 160, 160) and moved["predicted_us"] > 0
    assert moved["for_all_sizes"] == "wrong at [0:3:2, 0:4, H − 1:H, 0:10] and [1:4:2, 0:4, 0:1, 0:10] for H = 4, 5, …"
    graphs = sorted((tmp_path / "mutants").glob("*.json"))
    assert len(graphs) == len(rows) == len([ElementTree.parse(it) for it in (tmp_path / "mutants").glob("*.svg")])
    namespace: dict[str, object] = {}
    exec(PROGRAM, namespace)
    program = namespace["program"]().graph()  # type: ignore[operator]
    assert verify(program, serialize.load(graphs[moved["number"] - 1])).verdict is Equality.EQUAL


def _measured_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> JsonLine:
    (tmp_path / "conv.py").write_text(PROGRAM, encoding="utf-8")
    assert app(["mutants", str(tmp_path / "conv.py"), "--limit", "2", "--json"], standalone_mode=False)() == 0
    record: JsonLine = json.loads(capsys.readouterr().out)
    return record


@pytest.mark.slow
def test_where_there_is_a_gpu_each_mutant_has_its_own_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((9.0, 5.0, 12.0))
    monkeypatch.setattr(timing, "gpu_available", lambda: True)
    monkeypatch.setattr(timing, "time_source", lambda source: timing.Timing(next(times), 0.0, 0.0, 0.0, "events", "none"))
    record = _measured_rows(capsys, tmp_path)
    assert (record["original"]["measured_us"], [row["measured_us"] for row in record["mutants"]]) == (9.0, [5.0, 12.0])


@pytest.mark.gpu
def test_a_gpu_times_the_program_and_its_mutants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = _measured_rows(capsys, tmp_path)
    assert all(0.5 < row["measured_us"] < 1e4 for row in (record["original"], *record["mutants"]))


@pytest.mark.slow
def test_a_named_height_has_the_statements_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "conv.py").write_text(NAMED, encoding="utf-8")
    code, out, err = start_command("mutants", "conv.py", "--json", "--limit", "50", folder=tmp_path)
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)["mutants"]}
    assert {row["verdict"] for row in rows.values()} == {"equal"}
    stated = rows["x: h→n (2, outer to outer); result: n→h (2, outer to outer)"]["for_all_sizes"]
    assert stated.count("; ") == 1 and f"`{stated}`" in " ".join(PAGE.split())


@pytest.mark.slow
def test_the_python_blocks_of_the_page_run(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM + LOOP], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.917 2 x: n→h (2, inner to outer)" in done.stdout


MISTAKES = {  # program, further arguments, and the message
    "an input that is not there": (
        "graph.mark_output(graph.sum(graph.new_input((4, 4), name='x'), 1))",
        ("--every", "y:1"),
        "as x:2",
    ),
    "a dim that is not there": (
        "graph.mark_output(graph.sum(graph.new_input((4, 4), name='x'), 1))",
        ("--every", "x:2"),
        "got dim 2 of x, wanted one below 2",
    ),
    "nonlinear": (
        "graph.mark_output(graph.relu(graph.new_input((4, 4))))",
        (),
        "nothing to mutate: got relu; wanted a convolution",
    ),
    "nothing that moves": (
        "graph.mark_output(graph.softmax(graph.new_input((4, 4)), 1))",
        ("--least", "0.75"),
        "given: got no mutant of sum (div, exp: in no linear part) that is right on 75% of its positions; try: a smaller",
    ),
    "a dim besides the named ones": (
        "graph.mark_output(graph.sum(graph.new_input((mi.Dim('n', max=64), 4), name='x'), 1))",
        ("--every", "x:1"),
        "--every: got 'x:1' for a program with named dims, which is stated for all of their sizes",
    ),
    "no op": ("graph.mark_output(graph.new_input((4, 4)))", (), "nothing to mutate: got no op"),
    "a part above 1": (
        "graph.mark_output(graph.sum(graph.new_input((4, 4)), 1))",
        ("--least", "1.5"),
        "got 1.5, wanted a part above 0",
    ),
    "a file": (
        "graph.mark_output(graph.sum(graph.new_input((4, 4)), 1))",
        ("--out", "given.py"),
        "got the file 'given.py', wanted a folder",
    ),
    "an unknown GPU": ("graph.mark_output(graph.sum(graph.new_input((4, 4)), 1))", ("--gpu", "abacus"), "abacus"),
    "too large": (
        "graph.mark_output(graph.sum(graph.reshape(graph.new_input((4096, 4096)), (2048, 8192)), 1))",
        (),
        "got a program too large for mutants to be tried",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_input_is_one_line_and_exit_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, arguments, message = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "mutants", _program(tmp_path, body), *arguments)
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert message in line
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["given.py"]
