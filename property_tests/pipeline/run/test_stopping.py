"""What ends the command from outside: one line, no traceback, an exit code, and what was found is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mirage_eg as mi
from mirage_eg.backends.triton import bounded_compile
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.checkpoint import holds_results
from mirage_eg.pipeline.run.options import Options
from property_tests.support.full_disk import on_a_full_disk
from property_tests.support.parameters import few, paired

PROGRAM = """import mirage_eg as mi
def program():
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16, 64), name="X"), graph.new_input((64, 32), name="W")
    graph.mark_output(graph.matmul(graph.exp(x), w), name="Y")
    return graph
"""
ENDS = [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def small() -> Graph:
    program = mi.new_kernel_graph()
    program.mark_output(program.exp(program.new_input((16, 64), name="x")), name="y")
    return program.graph()


@pytest.mark.parametrize(("seconds", "ended"), paired([0.02, 0.1, 0.2, 0.4], ENDS))
def test_a_signal_in_the_first_moments_is_one_line(seconds: float, ended: tuple[str, int, str], tmp_path: Path) -> None:
    signal, code, word = ended
    (tmp_path / "p.py").write_text(PROGRAM)
    script = (
        "import os, signal, sys, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from mirage_eg.__main__ import main\n"
        "from mirage_eg.pipeline.run.stopping import handle_signals\n"
        "handle_signals()\n"
        "sys.argv = ['mirage-eg', 'optimize', 'p.py', '--device', 'cpu', '--no-cache', '--jobs', '1']\n"
        f"threading.Timer({seconds}, lambda: os.kill(os.getpid(), signal.{signal})).start()\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert "Traceback" not in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
    assert f"mirage-eg: {word}" in done.stderr or "--resume goes on" in done.stderr


@pytest.mark.parametrize(("ended", "then"), paired(ENDS, ["run(**options)", "time.sleep(60)"]))
def test_a_signal_that_a_library_swallows_ends_the_command(ended: tuple[str, int, str], then: str, tmp_path: Path) -> None:
    signal, code, word = ended
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from mirage_eg.__main__ import main\n"
        "import mirage_eg.cli.main as cli\n"
        "run = cli.app\n"
        "def swallowing(**options):\n"
        "    try:\n"
        f"        os.kill(os.getpid(), signal.{signal})\n"
        "    except BaseException:\n"
        "        pass\n"
        f"    return {then}\n"
        "cli.app = swallowing\n"
        "sys.argv = ['mirage-eg', '--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (code, f"mirage-eg: {word}\n")


@FULL
@pytest.mark.parametrize("command", few([["rules", "list"], ["--version"], ["optimize", "--help"], ["show", "graph.json"]], 2))
@pytest.mark.parametrize("unbuffered", few(["", "1"], 1))
def test_a_full_stdout_is_one_line(command: list[str], unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(mi.to_json(small()))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mirage_eg", *command],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (2, "mirage-eg: standard output: cannot be written: No space left on device\n")


@FULL
def test_a_result_is_kept_though_stdout_is_full(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    words = ["optimize", "p.py", "--device", "cpu", "--no-cache", "--jobs", "1", "--top", "1"]
    command = [sys.executable, "-m", "mirage_eg", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert (tmp_path / "mirage_out" / "p" / "best.py").exists()


def without_home(folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A run where no file can be written below the home."""
    (folder / "p.py").write_text(PROGRAM)
    (folder / "home").write_text("no folder")
    names = {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home" / "cache")}
    kept = {name: value for name, value in os.environ.items() if name not in ("TRITON_CACHE_DIR", "TRITON_HOME")}
    command = [sys.executable, "-m", "mirage_eg", "optimize", "p.py", "--device", "cpu", "--jobs", "1", "--top", "1"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=kept | names | variables)


def test_a_home_that_takes_no_files_is_one_line_before_the_work(tmp_path: Path) -> None:
    done = without_home(tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "TRITON_CACHE_DIR" in done.stderr and not (tmp_path / "mirage_out" / "p").exists()


@pytest.mark.slow
def test_a_home_that_takes_no_files_is_not_needed(tmp_path: Path) -> None:
    done = without_home(tmp_path, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert (tmp_path / "mirage_out" / "p" / "best.py").exists()


def test_a_full_triton_cache_is_one_line_and_the_results_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    checkpoint, options = tmp_path / "checkpoint.jsonl", Options(device="cpu", jobs=1, cache=False, top=1)
    with monkeypatch.context() as patched:
        patched.setattr(bounded_compile, "compile_for", on_a_full_disk)
        with pytest.raises(OptionError, match=r"No space left on device; try: another TRITON_CACHE_DIR"):
            optimize("p", small(), options, checkpoint=checkpoint)
    assert holds_results(checkpoint)
    assert optimize("p", small(), options, checkpoint=checkpoint, resume=True).candidates[0].compile.ok
