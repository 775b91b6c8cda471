"""The command line: results on stdout, bad input as one line on stderr with exit code 2, nothing half-written."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg import __version__
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.errors import MirageError, OptionError, ProgramError, RuleError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import write_atomically
from property_tests.support.command import PROGRAM, refused, run_command

if TYPE_CHECKING:
    pass

# What a user's file may hold, and a part of the line that answers it.
BAD_FILES = {
    "empty": ("", "FILE: defines no program()"),
    "syntax": ("def program(:\n", "FILE:1: the file does not import: SyntaxError: "),
    "null": ("x = '\0'\n", "the file does not import: "),
    "undecodable": ("# coding: martian\n", "the file does not import: SyntaxError: "),
    "raises": ("\n\nx = 1 / 0\n", "FILE:3: the file does not import: ZeroDivisionError: division by zero"),
    "imports": ("import no_such_module_here\n", "FILE:1: the file does not import: ModuleNotFoundError: No module named"),
    "leaves": ("import sys\nsys.exit(0)\n", "FILE:2: the file does not import: SystemExit: 0"),
    "two_lines": ("raise ValueError('one\\ntwo')\n", "ValueError: one two"),
    "no_call": ("program = 3\n", "FILE: program is a int; wanted a function program()"),
    "none": ("def program():\n    pass\n", "FILE: program() returned None, wanted a kernel graph"),
    "number": ("def program():\n    return 7\n", "FILE: program() returned a int, wanted a kernel graph"),
    "needs": ("def program(n):\n    return n\n", "FILE: program() needs n; wanted no parameters, or `batch` alone"),
    "fails": ("def program():\n    return {}['key']\n", "FILE:2: program() fails: KeyError: 'key'"),
    "recursion": ("def program():\n    return program()\n", "FILE:2: program() fails: RecursionError: "),
    "tensor": (
        "import mirage_eg as mi\ndef program():\n    return mi.new_kernel_graph().new_input((2,))\n",
        "FILE: program() returned a Tensor, wanted a kernel graph; return the graph",
    ),
    "nothing": (
        "import mirage_eg as mi\ndef program():\n    return mi.new_kernel_graph()\n",
        "FILE: program() returns an unfinished graph: got a kernel graph of 0 nodes without an output",
    ),
    "block": (
        "import mirage_eg as mi\ndef program():\n    return mi.new_threadblock_graph((2,))\n",
        "FILE: program() returned a ThreadblockGraph, wanted a kernel graph",
    ),
    "shapes": (
        "import mirage_eg as mi\ndef program():\n    g = mi.new_kernel_graph()\n"
        "    x = g.new_input((2, 3))\n    return g.matmul(x, x)\n",
        "FILE:5: program() fails: node 1: matmul: got [2, 3] @ [2, 3]; the last dim of the first (3) must equal",
    ),
}

LONG_NAMES = [  # commands before and the end of a path that no file system takes
    ("optimize rmsnorm --trace ", ""),
    ("optimize rmsnorm --out ", ".onnx"),
    ("optimize ", ".json"),
    ("rules check ", ".egg"),
    ("rewrite lora --rules ", ".egg"),
    ("cache import --dir . ", ".zip"),
    ("egraph lora --out ", ".svg"),
]

REFUSED = [
    ("", "Missing command"),
    ("optimise rmsnorm", "No such command 'optimise'"),
    ("optimize", "Missing argument 'PROGRAM'"),
    ("optimize rmsnorm extra", "extra"),
    ("optimize rmsnorm --fast", "No such option: --fast"),
    ("optimize rmsnorm --seed", "'--seed' requires an argument"),
    ("optimize rmsnorm --seed x", "Invalid value for '--seed'"),
    ("optimize rmsnorm --seed -1", "seed: got -1, wanted an int of at least 0"),
    ("optimize rmsnorm --batch 0", "batch: got 0, wanted an int of at least 1"),
    ("optimize rmsnorm --domain concrete", "domain: got 'concrete', wanted one of indexed, abstract"),
    ("optimize rmsnorm --target sm_1", "target: got 'sm_1', wanted one of sm_90"),
    ("optimize rmsnorm --device tpu", "device: got 'tpu', wanted one of auto, cpu, cuda"),
    ("optimize rmsnorm --max-block-ops 0", "max_block_ops: got 0"),
    ("optimize rmsnorm --egraph-nodes 0", "egraph_nodes: got 0"),
    ("optimize rmsnorm --without mul", "wanted a theory (00_language"),
    ("optimize rmsnorm --without mulcommutes", "did you mean 'mul commutes'?"),
    ("rules impact none.egg rmsnorm", "none.egg: cannot be read"),
    ("rules impact inverse.egg lora", "inverse.egg: no law matches in lora"),
    ("rules impact inverse.egg rmsnrom", "did you mean rmsnorm?"),
    ("rules impact inverse.egg rmsnorm --out taken", "taken is no folder"),
    ("rules impact inverse.egg rmsnorm --domain concrete", "domain: got 'concrete'"),
    ("rules impact endless.egg rmsnorm --max-block-ops 7 --egraph-nodes 2000", "keeps the e-graph growing"),
    ("rules impact unknown.egg rmsnorm", "unknown.egg:2: "),
    ("rules ablate rmsnorm --law mulcommutes", "did you mean 'mul commutes'?"),
    ("rules ablate rmsnorm --rules none.egg", "rules: no such file or folder"),
    ("rules compare indexed", "Missing argument 'B'"),
    ("rules compare indexed concrete rmsnorm", "got rule set 'concrete'"),
    ("rules compare indexed indexed rmsnorm --without nothing_like_it", "wanted a theory (00_language"),
    ("optimize rmsnorm --max-outputs 0", "max_outputs: got 0"),
    ("optimize rmsnorm --top 0", "top: got 0"),
    ("optimize rmsnorm --trials 0", "trials: got 0"),
    ("optimize rmsnorm --jobs 0", "jobs: got 0"),
    ("optimize rmsnorm --budget 0", "budget: got 0.0"),
    ("optimize rmsnorm --budget nan", "budget: got nan"),
    ("optimize rmsnorm --rules none.egg", "rules: no such file or folder: none.egg"),
    ("optimize rmsnorm --out taken", "cannot be an output folder: taken is no folder"),
    ("optimize rmsnorm --out taken/below", "cannot be an output folder: taken is no folder"),
    ("optimize rmsnorm --out /proc/none", "/proc/none/rmsnorm: cannot be written"),
    ("optimize rmsnrom", "did you mean rmsnorm?"),
    ("optimize nothing_like_it_at_all", "the workloads are rmsnorm, gated_mlp"),
    ("optimize notes.txt", "notes.txt: wanted a workload"),
    ("optimize .", "wanted a workload"),
    ("optimize none.py", "none.py: cannot be read: No such file or directory"),
    ("optimize none.json", "none.json: cannot be read: No such file or directory"),
    ("optimize good.py --batch 2", "good.py: program() takes no batch; got --batch 2"),
    ("optimize good.json --batch 2", "good.json: a JSON graph has a fixed batch"),
    ("verify rmsnorm", "Missing argument 'GRAPH.json'"),
    ("verify nothing good.json", "no program 'nothing'"),
    ("verify rmsnorm none.json", "none.json: cannot be read"),
    ("verify rmsnorm taken", "taken: line 1, column 1: not JSON"),
    ("verify rmsnorm good.json --trials 0", "trials: got 0"),
    ("verify rmsnorm good.json", "good.json: got a candidate that takes [16, 256] float16"),
    ("verify lora good.json --batch 2", "good.json: got a candidate that takes [16, 256] float16"),
    ("show", "Missing argument 'GRAPH.json'"),
    ("show none.json", "none.json: cannot be read"),
    ("show notes.txt", "notes.txt: line 1, column 1: not JSON"),
    ("show good.json --out good.png", "wanted a file that ends in .svg or .html"),
    ("show good.json --out taken/good.svg", "taken is no folder"),
    *((f"{command}{'a' * 300}{suffix}", "File name too long") for command, suffix in LONG_NAMES),
]


@pytest.mark.parametrize(("arguments", "wanted"), REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: str, wanted: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wanted in refused(arguments.split(), capsys, folder)


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["optimize FILE", "verify FILE good.json"])
def test_a_bad_program_file_is_one_line_and_exit_code_2(
    name: str, command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, wanted = BAD_FILES[name]
    (folder / f"{name}.py").write_text(source)
    line = refused(command.replace("FILE", f"{name}.py").split(), capsys, folder)
    assert wanted.replace("FILE", f"{name}.py") in line


@given(st.data())
def test_every_damaged_graph_file_is_refused_or_is_a_graph(data: st.DataObject) -> None:
    text = to_json(WORKLOADS["gqa"](1))
    start = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(1, 20))
    damaged = text[:start] + data.draw(st.text(max_size=3)) + text[start + length :]
    try:
        assert isinstance(from_json(damaged, "damaged.json"), Graph)
    except MirageError as error:
        assert re.fullmatch(r"damaged\.json: .+", str(error))


def test_a_program_is_a_name_a_graph_or_a_file(folder: Path) -> None:
    assert load_program("lora", 8) == ("lora", WORKLOADS["lora"](8))
    assert load_program("good.json") == ("good", WORKLOADS["lora"](1))
    name, graph = load_program(str(folder / "good.py"))
    assert name == "good"
    assert [item.op for item in graph.nodes] == ["input", "input", "silu", "matmul", "output"]


def test_a_program_may_take_the_batch_and_import_its_neighbours(folder: Path) -> None:
    (folder / "widths.py").write_text("WIDTH = 48\n")
    (folder / "batched.py").write_text(
        "import mirage_eg as mi\nfrom widths import WIDTH\n"
        "def program(batch=3):\n    g = mi.new_kernel_graph()\n    g.exp(g.new_input((batch, WIDTH)))\n    return g.graph()\n"
    )
    path, modules = list(sys.path), set(sys.modules)
    for batch in (1, 5):
        assert load_program("batched.py", batch)[1].output_types[0].shape == (batch, 48)
    assert sys.path == path
    assert set(sys.modules) - modules == {"widths"}
    del sys.modules["widths"]


def test_a_built_in_program_may_be_that_of_a_file(folder: Path) -> None:
    (folder / "mine.py").write_text("from mirage_eg.frontend.workloads import lora as program\n")
    assert load_program("mine.py", 8) == ("mine", WORKLOADS["lora"](8))


def test_a_name_never_leaves_the_output_folder(folder: Path) -> None:
    for file in ("...py", ".hidden.py", "a b;c.py"):
        (folder / file).write_text(PROGRAM)
        name, _ = load_program(file)
        assert re.fullmatch(r"[\w][\w.-]*", name)


@given(st.integers(max_value=0) | st.booleans() | st.floats() | st.none() | st.text())
def test_workloads_refuse_what_is_no_batch(batch: object) -> None:
    for workload in WORKLOADS.values():
        with pytest.raises(ProgramError, match="wanted an int of at least 1"):
            workload(batch)  # type: ignore[arg-type]


def test_options_take_lists_and_refuse_empty_restrictions() -> None:
    options = Options(griddims=[(2, 16, 1), [2, 16, 4]], imaps=[(0, -1)], fmaps=[-1, 0], franges=[4])  # type: ignore[arg-type]
    assert options.griddims == ((2, 16, 1), (2, 16, 4))
    assert hash(options) == hash(Options(griddims=((2, 16, 1), (2, 16, 4)), imaps=((0, -1),), fmaps=(-1, 0), franges=(4,)))
    for wrong in ([], [()], [(0,)], [(1, 2, 3, 4)], "12", [1], 3):
        with pytest.raises(OptionError, match=r"^griddims: got "):
            Options(griddims=wrong)  # type: ignore[arg-type]


def test_show_prints_the_listing_that_str_gives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "show", "good.json")
    assert (code, out, err) == (0, f"{WORKLOADS['lora'](1)}\n", "")


def test_version_and_help_are_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "--version") == (0, f"mirage-eg {__version__}\n", "")
    code, out, err = run_command(capsys, "optimize", "--help")
    assert code == 0 and "PROGRAM" in out and err == ""


def test_a_run_that_fails_before_it_found_anything_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuleError("my.egg:1: law 'x' has the most matches")

    monkeypatch.setattr("mirage_eg.pipeline.program_search.search_one_kernel", fails)
    assert run_command(capsys, "optimize", "ntrans", "--no-cache", "--out", folder / "new" / "deep")[0] == 2
    assert not (folder / "new").exists()


def test_an_interrupt_is_one_line_and_exit_code_130(folder: Path) -> None:
    (folder / "waits.py").write_text("import time, pathlib\npathlib.Path('started').touch()\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "mirage_eg", "optimize", "waits.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,
    ) as process:
        while not (folder / "started").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "mirage-eg: interrupted\n")


def _hear_interrupts() -> None:
    """A shell starts background jobs with interrupts ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_reader_that_leaves_early_is_no_traceback(folder: Path) -> None:
    command = f"{sys.executable} -m mirage_eg show good.json | true"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_atomically(path, "first")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "second, with half a character \ud800")
    assert path.read_text() == "first"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_verify_answers_in_one_json_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "verify", "lora", "good.json", "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    verdict = json.loads(out)
    assert verdict["verdict"] == "equal" and verdict["index"] == 0 and verdict["trials"] == 2


def test_verify_says_not_equal_with_exit_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = to_json(WORKLOADS["lora"](1))
    assert text.count('"op": "add"') == 1
    (folder / "wrong.json").write_text(text.replace('"op": "add"', '"op": "sub"'))
    code, out, err = run_command(capsys, "verify", "lora", "wrong.json")
    assert (code, err) == (1, "")
    assert "not equal" in out
