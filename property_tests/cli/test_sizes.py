"""Named dims on the command line: ranges that are no ranges and unknown names are one line, before any work."""

import json
from pathlib import Path

import pytest

from mirage_eg.ir import serialize
from mirage_eg.ir.at_sizes import at_sizes
from property_tests.pipeline.test_buckets import normed_product
from property_tests.support.command import run_command

PROGRAM = """import mirage_eg as mi

def program():
    graph = mi.new_kernel_graph()
    x = graph.new_input((mi.Dim("n", min=1, max=70), 32), "float32", "X")
    w = graph.new_input((32, 48), "float32", "W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 32, eps=1e-5), w), "O")
    return graph
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "rows.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dim", "n=9:3"), "Dim n: got min 9 above max 3, wanted min ≤ max"),
        (("--dim", "n"), "got dim 'n', wanted NAME=MIN:MAX or NAME=MIN:MAX:MULTIPLE, such as n=2:8192"),
        (("--dim", "m=1:9"), "--dim: got unknown name 'm', wanted one of n"),
        (("--trace", "lines.jsonl"), "--trace: not offered for programs with named dims; leave it out"),
    ],
)
def test_a_range_that_is_none_is_refused_in_one_line(
    options: tuple[str, str], message: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_command(capsys, "optimize", program, *options, "--out", tmp_path / "out")
    assert (code, err) == (2, f"mirage-eg: {message}\n") and not (tmp_path / "out").exists()


def test_verify_prints_the_sizes_that_it_vouches_for(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "library.json"
    path.write_text(serialize.to_json(at_sizes(normed_product(), {"n": 16})), encoding="utf-8")
    code, out, _ = run_command(capsys, "verify", program, path, "--sizes", "n=1:33")
    assert code == 0 and "library.json: n = 1 … 33: equal (proved for every number of tiles; masks cut rows" in out
    code, out, _ = run_command(capsys, "verify", program, path, "--sizes", "n=1:33", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["equal"] and found["sizes"] == {"n": [1, 33]} and {"n": 33} in found["tested_at"]
    for sizes, message in (("n=1:71", "size n: got 71"), ("m=1:3", "--sizes: got unknown name 'm', wanted n")):
        code, _, err = run_command(capsys, "verify", program, path, "--sizes", sizes)
        assert code == 2 and message in err


def test_a_wrong_kernel_is_vouched_for_at_no_size(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = tmp_path / "wrong.json", serialize.to_json(at_sizes(normed_product(), {"n": 16}))
    path.write_text(text.replace('"1/100000"', '"1/10"'), encoding="utf-8")
    code, out, _ = run_command(capsys, "verify", program, path)
    assert code == 1 and "n = 1 … 70: not vouched for: n=1: not equal" in out
