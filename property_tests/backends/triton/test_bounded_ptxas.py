"""A kernel that keeps ptxas too long is dropped with a reason, and ptxas ends with the process that waits for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import pytest
from triton.backends.nvidia import compiler

from mirage_eg.backends.triton.bounded_ptxas import Bound, bounded_ptxas
from mirage_eg.backends.triton.compile import compile_kernel, compiled_texts, loaded
from mirage_eg.backends.triton.emit import emit
from property_tests.support.hand_written import HAND_WRITTEN

ROOT = Path(__file__).parents[3]
PTXAS = """#!{python}
import os, sys, time
if "--version" in sys.argv:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
open({note!r}, "w").write(str(os.getpid()))
while True:
    pass
"""
BUSY = [sys.executable, "-c", "while True: pass"]


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ptxas that never ends, in place of Triton's; the file that has its number."""
    note, path = tmp_path / "number", tmp_path / "ptxas"
    path.write_text(PTXAS.format(python=sys.executable, real=compiler.get_ptxas(90).path, note=str(note)))
    path.chmod(0o755)
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):  # by target and version of Triton
        monkeypatch.setenv(name, str(path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return note


def test_a_kernel_that_keeps_ptxas_too_long_is_a_record_with_the_reason(endless: Path) -> None:
    source = emit(HAND_WRITTEN["attention"]("float16").mugraph)
    with loaded(source) as module:
        names = [*compiled_texts(module, "sm_90")]
    records = [compile_kernel(source, name, "sm_90", 1) for name in names]
    assert endless.exists() and records
    assert all(not record.ok and record.error == "ptxas was ended: not done after 1 seconds of the CPU" for record in records)
    assert not lives(int(endless.read_text()))


def test_a_bound_is_of_the_cpu_and_other_problems_keep_their_words() -> None:
    bound, begun = Bound(1), perf_counter()
    with bounded_ptxas(bound):
        run: Any = compiler.subprocess.run
        run([sys.executable, "-c", "import time; time.sleep(2)"], check=True)  # waits, and takes nothing
        with pytest.raises(subprocess.CalledProcessError):
            run([sys.executable, "-c", "raise SystemExit(3)"], check=True)
        assert bound.problem is None and perf_counter() - begun >= 2
        with pytest.raises(subprocess.CalledProcessError):
            run(BUSY, check=True)
    assert bound.problem is not None and "1 seconds" in bound.problem


def test_what_others_compile_has_no_bound() -> None:
    with bounded_ptxas(Bound(1)):
        pass
    code = "import resource; raise SystemExit(resource.getrlimit(resource.RLIMIT_CPU)[0] != resource.RLIM_INFINITY)"
    compiler.subprocess.run([sys.executable, "-c", code], check=True)
    assert compiler.subprocess.CalledProcessError is subprocess.CalledProcessError


WAITING = """
from triton.backends.nvidia import compiler
from mirage_eg.backends.triton.bounded_ptxas import Bound, bounded_ptxas
with bounded_ptxas(Bound()):
    compiler.subprocess.run({command!r}, check=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a process with its parent")
def test_ptxas_ends_with_the_process_that_waits_for_it(tmp_path: Path) -> None:
    note = tmp_path / "number"
    command = [sys.executable, "-c", f"import os; open({str(note)!r}, 'w').write(str(os.getpid()) + ' ')\nwhile True: pass"]
    waiting = subprocess.Popen([sys.executable, "-c", WAITING.format(command=command)], cwd=ROOT)
    try:
        until(lambda: note.exists() and note.read_text().endswith(" "))
        assert lives(int(note.read_text()))
    finally:
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.wait()
    until(lambda: not lives(int(note.read_text())))


def until(holds: Any) -> None:
    end = perf_counter() + 60
    while not holds():
        assert perf_counter() < end
        sleep(0.05)


def lives(process: int) -> bool:
    """Whether a process runs: one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
