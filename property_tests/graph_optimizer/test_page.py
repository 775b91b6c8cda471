"""The commands and the example of docs/how_to/rewrite.md run."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from property_tests.support.command import run_command

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "rewrite.md").read_text(encoding="utf-8")

MODEL = """
import mirage_eg as mi

def program():
    graph = mi.new_kernel_graph()
    x, w, u = (graph.new_input((16, 16), name=name) for name in ("x", "w", "u"))
    graph.mark_output(graph.relu(x @ w @ u))
    return graph
"""
OPS = """
import mirage_eg as mi

mi.register_op("twice_relu", definition=lambda b, x: b.add(b.relu(x), b.relu(x)))
"""


def run(*arguments: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), arguments
    return done.stdout


@pytest.mark.slow
def test_the_commands_of_the_page_rewrite_and_verify(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "my_ops.py").write_text(OPS, encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            run("-m", "mirage_eg", *shlex.split(line, comments=True)[1:], folder=tmp_path)
    report = json.loads((tmp_path / "mirage_out/gated_mlp/rewrite.json").read_text(encoding="utf-8"))
    assert report["verdict"] == "equal" and report["joint"]["us"] <= report["as_written"]["us"]
    assert {"prologue.json", "rewritten.json", "rewritten.svg"} <= {
        path.name for path in (tmp_path / "mirage_out/gated_mlp").iterdir()
    }


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(
        "-c",
        example + "\nassert found.verdict.equal and run.prologue_runs == 1 and len(found.prologue.outputs) == 1",
        folder=tmp_path,
    )


def test_bad_input_is_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["gated_mlp", "--weights", "nothing"], ["gated_mlp", "--seconds", "0"], ["nowhere"]):
        code, out, err = run_command(capsys, "rewrite", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert not (tmp_path / "mirage_out").exists()
