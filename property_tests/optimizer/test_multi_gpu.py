"""Tuning on several GPUs finds what one finds, assigns candidates by number, and outlives a process that dies."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import loky
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending
from mirage_eg.backends.evaluator.processes import keep_worker
from mirage_eg.backends.measure.candidate_timer import DeviceLost
from mirage_eg.backends.measure.timing import Outcome
from mirage_eg.ir.deadline import after
from mirage_eg.ir.errors import MirageError
from mirage_eg.optimizer import multi_gpu
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.multi_gpu import (
    Calls,
    MultiGpuTimer,
    gpus_of_first_kind,
    multi_gpu_timer,
    run_elsewhere,
    shared_timing_processes,
)
from mirage_eg.optimizer.tune import Tuning, tune
from property_tests.optimizer.test_tune import SMALL, Clock, compiled_everything, pool
from property_tests.support.parameters import few
from property_tests.support.timed_calls import dies, ends_as_told, fails_first, full, hangs, process, refuses, takes_some


@pytest.fixture(scope="module", autouse=True)
def _no_old_egraphs() -> None:
    """Tracebacks of earlier tests may hold e-graphs, which the threads of these tests must not be the ones to free."""
    gc.collect()


def started(gpu: str) -> Executor:
    return ThreadPoolExecutor(1, thread_name_prefix=f"gpu-{gpu}-")


def on_which() -> str:
    return threading.current_thread().name.split("-")[1]


def never() -> float:
    return float("inf")


@settings(max_examples=30)
@given(pauses=st.lists(st.integers(0, 3), max_size=12), count=st.integers(1, 4))
def test_candidate_i_is_timed_on_gpu_i_modulo_their_number_at_any_speed(pauses: Sequence[int], count: int) -> None:
    seen: dict[str, str] = {}

    def quick(source: str) -> Outcome:
        seen[source] = on_which()
        sleep(pauses[int(source)] / 1000)
        return Outcome(float(source), 0.0, None)

    gpus = [f"g{number}" for number in range(count)]
    with MultiGpuTimer(gpus, started, Calls(quick, full)) as timer:
        outcomes = list(timer.quick_all([str(number) for number in range(len(pauses))], never))
    assert [outcome.us for outcome in outcomes if outcome] == list(map(float, range(len(pauses))))
    assert seen == {str(number): f"g{number % count}" for number in range(len(pauses))}


def test_one_gpu_times_one_candidate_at_a_time_and_several_at_once() -> None:
    inside: dict[str, int] = {"a": 0, "b": 0}
    most = {"a": 0, "b": 0, "together": 0}

    def quick(source: str) -> Outcome:
        gpu = on_which()
        inside[gpu] += 1
        most[gpu] = max(most[gpu], inside[gpu])
        most["together"] = max(most["together"], sum(inside.values()))
        sleep(0.02)
        inside[gpu] -= 1
        return Outcome(1.0, 0.0, None)

    with MultiGpuTimer("ab", started, Calls(quick, full)) as timer:
        assert len(list(timer.quick_all("0123456789", never))) == 10
    assert most == {"a": 1, "b": 1, "together": 2}


def test_nothing_begins_behind_the_deadline() -> None:
    begun: list[str] = []

    def quick(source: str) -> Outcome:
        begun.append(source)
        sleep(0.05)
        return Outcome(1.0, 0.0, None)

    stop = perf_counter() + 0.12
    with MultiGpuTimer("ab", started, Calls(quick, full)) as timer:
        outcomes = list(timer.quick_all([str(number) for number in range(40)], lambda: stop))
    assert len(outcomes) == 40
    assert 2 <= len(begun) <= 8
    assert {str(place) for place, outcome in enumerate(outcomes) if outcome} == set(begun)


def test_a_lost_gpu_context_costs_its_candidate_alone() -> None:
    starts: list[str] = []

    def start(gpu: str) -> Executor:
        starts.append(gpu)
        return started(gpu)

    def quick(source: str) -> Outcome:
        if source in "25":
            raise DeviceLost("the GPU context is lost")
        return Outcome(1.0, 0.0, None)

    with MultiGpuTimer("ab", start, Calls(quick, full)) as timer:
        outcomes = list(timer.quick_all("01234567", never))
    failed = [place for place, outcome in enumerate(outcomes) if outcome is None or outcome.us is None]
    assert failed == [2, 5]
    assert all(outcomes[place].problem.startswith("DeviceLost: the GPU context") for place in failed)  # type: ignore[union-attr]
    assert sorted(starts) == ["a", "a", "b", "b"]


def test_a_process_sees_its_gpu_alone_and_one_that_dies_is_replaced() -> None:
    with MultiGpuTimer(["4", "7"], process, Calls(dies, full)) as timer:
        outcomes = list(timer.quick_all("0123", never))
    assert [outcome.us if outcome else None for outcome in outcomes] == [4.0, None, 4.0, 7.0]
    assert outcomes[1] is not None and outcomes[1].problem is not None


def test_an_error_in_a_process_is_an_outcome_with_its_words_alone() -> None:
    with MultiGpuTimer(["4"], process, Calls(takes_some, full, refuses)) as timer:
        outcomes = list(timer.quick_all("012", never))
        assert timer.full("0")[0].us == 1.0
    assert [outcome.problem if outcome else "" for outcome in outcomes] == [
        None,
        "TypeError: torch.finfo: got torch.int64",
        None,
    ]


def test_an_error_of_the_timer_itself_has_words_for_each_candidate() -> None:
    with multi_gpu_timer(["0"], "raise ValueError('a result of whole numbers')", 0) as timer:
        outcomes = [*timer.quick_all("012", never), timer.quick("3"), timer.full("4")[0]]
    assert [outcome.problem if outcome else "" for outcome in outcomes] == ["ValueError: a result of whole numbers"] * 5


def test_timers_may_share_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    process = multi_gpu._process
    monkeypatch.setattr(multi_gpu, "_process", lambda gpu: started.append(process(gpu)) or started[-1])
    problems = []
    with shared_timing_processes():
        for problem in ("first", "second"):
            with multi_gpu_timer(["0"], f"raise ValueError({problem!r})", 0) as timer:
                problems += [timer.quick("").problem, timer.full("")[0].problem]
        assert len(started) == 1 and started[0]._processes
    assert problems == ["ValueError: first"] * 2 + ["ValueError: second"] * 2
    assert not started[0]._processes  # they ended with the context


@pytest.mark.parametrize("pause", few([0.0, 2.0], 1))
def test_a_process_that_ends_while_it_begins_costs_one_candidate_at_most(pause: float, tmp_path: Path) -> None:
    def start(gpu: str) -> Executor:
        executor: Executor = loky.ProcessPoolExecutor(1, initializer=fails_first, initargs=(str(tmp_path),))
        return executor

    with MultiGpuTimer(["4"], start, Calls(takes_some, full)) as timer:
        sleep(pause)  # after it the pool knows that its process has ended
        outcomes = list(timer.quick_all("0234", never))
    assert [outcome.us if outcome else None for outcome in outcomes] == [None, 1.0, 1.0, 1.0]
    assert outcomes[0] is not None and outcomes[0].problem is not None


_held: list[bytes] = []


def hold(megabytes: int) -> int:
    """Keep so much memory, as the programs of a timer do, and pause for loky's look at it; gives the process."""
    _held.append(b"1" * (megabytes << 20))
    sleep(1.1)
    return os.getpid()


@pytest.mark.slow
def test_a_process_that_grows_is_kept() -> None:
    executor = loky.ProcessPoolExecutor(1, initializer=keep_worker)
    try:
        assert len({executor.submit(hold, megabytes).result() for megabytes in (0, 400, 0)}) == 1
    finally:
        executor.shutdown(kill_workers=True)


def test_a_candidate_that_hangs_is_ended_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_gpu, "HUNG_SECONDS", 0.1)
    begun = perf_counter()
    with MultiGpuTimer(["4"], process, Calls(hangs, full)) as timer:
        assert timer.quick("0").us == 1.0  # the process is up
        stop = perf_counter() + 0.3
        outcomes = list(timer.quick_all("012", lambda: stop))
    assert perf_counter() - begun < 60
    assert outcomes[1] is not None and outcomes[1].us is None and "seconds of tuning" in str(outcomes[1].problem)


LEFT_OVER = """
import os, time
from mirage_eg.optimizer.multi_gpu import Calls, MultiGpuTimer
from mirage_eg.pipeline.run.executors import Workers
from property_tests.optimizer import test_multi_gpu as here

with Workers(jobs=2) as workers, MultiGpuTimer(["4", "7"], here.process, Calls(here.dies, here.full)) as timer:
    stop = time.perf_counter() + 6
    assert (0, 1.0) in list(workers.map(here.sleeps, [1.0, 0, 0, 120, 0, 120], lambda: stop))
    assert [outcome.us for outcome in timer.quick_all("0123", lambda: float("inf"))] == [4.0, None, 4.0, 7.0]
print("ended")
"""


def sleeps(seconds: float) -> float:
    sleep(seconds)
    return seconds


@pytest.mark.slow
def test_processes_end_with_the_run_and_nothing_of_theirs_is_left() -> None:
    begun = perf_counter()
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LEFT_OVER], capture_output=True, text=True, cwd=root, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")  # the resource tracker would say so there
    assert perf_counter() - begun < 90


def test_a_gpu_on_which_nothing_works_is_an_error_not_an_endless_loop() -> None:
    def quick(source: str) -> Outcome:
        raise DeviceLost("no memory")

    with MultiGpuTimer("a", started, Calls(quick, full)) as timer, pytest.raises(MirageError, match="GPU a: 5 processes"):
        list(timer.quick_all([str(number) for number in range(50)], never))


def test_tuning_on_three_gpus_finds_what_one_gpu_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    lines: dict[int, list[Measurement]] = {1: [], 3: []}
    clock = Clock()
    alone = tune(program, families, DEVICES["H100"], clock, Tuning(SMALL, record=lines[1].append))
    other = Clock()
    with MultiGpuTimer("abc", started, Calls(other.quick, other.full)) as timer:
        spread_out = tune(program, families, DEVICES["H100"], timer, Tuning(SMALL, record=lines[3].append))
    assert [tuned.variant for tuned in spread_out] == [tuned.variant for tuned in alone]
    assert lines[1] == lines[3]


@pytest.mark.parametrize(
    ("variable", "kinds", "wanted"),
    [
        (None, ["H100", "H100"], ["0", "1"]),
        ("3,1", ["H100", "H100"], ["3", "1"]),
        ("GPU-aa, GPU-bb", ["A100", "H100"], ["GPU-aa"]),
        (None, ["H100", "A100", "H100"], ["0", "2"]),
        ("0,9", ["H100"], ["0"]),
    ],
)
def test_gpus_of_the_first_ones_kind_are_used(
    variable: str | None, kinds: list[str], wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda: Any = SimpleNamespace(device_count=lambda: len(kinds), get_device_name=lambda device: kinds[device])
    monkeypatch.setattr("torch.cuda.device_count", cuda.device_count)
    monkeypatch.setattr("torch.cuda.get_device_name", cuda.get_device_name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert gpus_of_first_kind() == wanted
    assert multi_gpu._timer is None


def test_a_run_in_another_process_says_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_gpu, "_run_once", ends_as_told)
    monkeypatch.setattr(multi_gpu, "_begin_gpu", int)
    monkeypatch.setattr(multi_gpu, "gpus_of_first_kind", lambda: ["0"])
    assert run_elsewhere(0, "lost", ()) is None  # there is no process
    with shared_timing_processes(["0"]):
        assert [run_elsewhere(0, source, ()) for source in ("right", "lost", "right")] == [None, "misaligned address", None]
        with ending(after(0.2)), pytest.raises(OverdueError):
            run_elsewhere(0, "slow", ())
        assert run_elsewhere(0, "lost", ()) is None
