"""Processes and threads that measure on one GPU take turns."""

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from mirage_eg.backends.measure import gpu_turn as turns
from mirage_eg.backends.measure.gpu_turn import autotune_in_turn, gpu_turn

_ASKS = """
import sys
from pathlib import Path
from mirage_eg.backends.measure import gpu_turn as turns
turns.lock_file = lambda: Path(sys.argv[1])
print("asks", flush=True)
with turns.gpu_turn():
    print("has it", flush=True)
"""


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests that run beside these have another lock."""
    monkeypatch.setattr(turns, "lock_file", lambda: tmp_path / "lock")
    return tmp_path / "lock"


def test_another_process_waits_for_the_end_of_a_turn(own_lock: Path) -> None:
    with gpu_turn():
        process = subprocess.Popen([sys.executable, "-c", _ASKS, str(own_lock)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "asks\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    assert process.stdout.readline() == "has it\n"
    assert process.wait(10.0) == 0
    process.stdout.close()


def test_who_has_the_turn_may_ask_again() -> None:
    thread = Thread(target=_two_turns, daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    with gpu_turn():
        pass


def test_an_error_ends_the_turn() -> None:
    with pytest.raises(ValueError, match="mine"), gpu_turn():
        raise ValueError("mine")
    thread = Thread(target=_one_turn)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()


def test_autotuning_of_inductor_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarking = pytest.importorskip("torch._inductor.runtime.benchmarking")
    measured: list[float] = []
    monkeypatch.setattr(benchmarking.benchmarker, "benchmark_gpu", measured.append)
    autotune_in_turn()
    autotune_in_turn()  # once is enough
    thread = Thread(target=lambda: benchmarking.benchmarker.benchmark_gpu(1.0))
    with gpu_turn():
        thread.start()
        thread.join(0.2)
        assert measured == []
    thread.join(10.0)
    assert measured == [1.0]


def _two_turns() -> None:
    with gpu_turn(), gpu_turn():
        pass


def _one_turn() -> None:
    with gpu_turn():
        pass
