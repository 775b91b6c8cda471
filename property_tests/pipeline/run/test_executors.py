"""Work items give the same wherever they run; a worker that dies loses nothing, and its items run again."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import loky
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.processes import begin_worker, end_processes
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.run import executors
from mirage_eg.pipeline.run.executors import Workers, shared_processes
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.verdict import Observer
from property_tests.support.programs import attention
from property_tests.support.timeless import timeless
from property_tests.support.workers import pid, squares, squares_or_death

SPAWN = multiprocessing.get_context("spawn")


def results(workers: Workers, function: Any, common: Any, count: int) -> list[Any]:
    """In order of items; each is there once."""
    found = list(workers.run("test", function, common, range(count)))
    assert sorted(position for position, _ in found) == list(range(count))
    return [result for _, result in sorted(found)]


def ahead(workers: Workers, function: Any, common: Any, items: Sequence[int], likely: Iterable[int]) -> list[Any]:
    """In order of items; each is there once."""
    found = list(workers.run_ahead("test", function, common, items, likely))
    assert sorted(position for position, _ in found) == list(range(len(items)))
    return [result for _, result in sorted(found)]


def late_pid(common: None, items: Sequence[int]) -> Iterator[int]:
    for item in items:
        time.sleep(0.02)
        yield from pid(common, [item])


BEGUN: list[int] = []


def slow(item: int) -> None:
    BEGUN.append(item)
    time.sleep(0.03)


def is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is worth a process."""
    monkeypatch.setattr(executors, "WORTH_STARTING", 0.0)
    monkeypatch.setattr(executors, "WORTH_SENDING", 0.0)


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    with Workers("dask", 2) as workers:
        yield workers.open_pool()


@settings(max_examples=25)
@given(st.integers(0, 200), st.integers(1, 9))
def test_every_item_is_done_once_and_in_its_place(count: int, jobs: int) -> None:
    with ThreadPoolExecutor(jobs) as pool, Workers(pool) as workers:
        assert results(workers, squares, 7, count) == [7 + x * x for x in range(count)]


@settings(max_examples=25)
@given(st.integers(0, 2000), st.integers(1, 40))
def test_chunks_are_few_nearly_equal_and_hold_everything(count: int, most: int) -> None:
    chunks = executors.split_evenly(range(count), most)
    assert [x for chunk in chunks for x in chunk] == list(range(count))
    assert len(chunks) <= most
    assert not chunks or max(map(len, chunks)) - min(map(len, chunks)) <= 1


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sets(st.integers(0, 9)), st.lists(st.integers(0, 9))), max_size=5), st.integers(1, 4))
def test_items_begun_ahead_change_no_result(calls: list[tuple[set[int], list[int]]], jobs: int) -> None:
    with ThreadPoolExecutor(jobs) as pool, Workers(pool) as workers:
        for items, likely in calls:
            assert ahead(workers, squares, 7, [*items], likely) == [7 + x * x for x in items]


def test_idle_workers_begin_what_is_likely_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, all_sent, real = list[int](), Event(), executors.completed_until

    def recorded(common: None, items: Sequence[int]) -> Iterator[int]:
        assert all_sent.wait(60)
        begun.extend(items)
        return iter(items)

    def as_completed(*given: Any) -> Iterator[Any]:
        all_sent.set()
        return real(*given)

    monkeypatch.setattr(executors, "completed_until", as_completed)
    with ThreadPoolExecutor(2) as pool, Workers(pool) as workers:
        likely = iter([2, 3, 4])
        assert ahead(workers, recorded, None, [1], likely) == [1]
        assert next(likely) == 3
        assert ahead(workers, recorded, None, [2], []) == [2]
    assert sorted(begun) == [1, 2]


def test_work_ahead_goes_to_processes_once_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(jobs=2) as workers:
        assert ahead(workers, pid, None, [1], [2]) == [os.getpid()]
        monkeypatch.setattr(executors, "WORTH_STARTING", 0.0)
        assert os.getpid() not in ahead(workers, pid, None, [3], [])


def test_a_dead_process_takes_nothing_of_the_work_ahead_along(eager: None, tmp_path: Path) -> None:
    for life in range(2):
        (tmp_path / str(life)).touch()
    with Workers(jobs=2) as workers:
        assert ahead(workers, squares_or_death, str(tmp_path), [5], []) == [25]
        assert ahead(workers, squares_or_death, str(tmp_path), [1, 2], [3]) == [1, 4]
        assert ahead(workers, squares_or_death, str(tmp_path), [3, 4], [6]) == [9, 16]
        assert ahead(workers, squares_or_death, str(tmp_path), [6], []) == [36]


def test_tiny_work_starts_no_process() -> None:
    with Workers(jobs=2) as workers:
        assert set(results(workers, pid, None, 50)) == {os.getpid()}


def test_time_that_others_take_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "WORTH_STARTING", 0.1)
    with Workers(jobs=2) as workers:
        assert set(results(workers, late_pid, None, 20)) == {os.getpid()}
        assert {*ahead(workers, late_pid, None, range(20), []), *ahead(workers, pid, None, range(2), [])} == {os.getpid()}


def test_one_job_never_starts_a_process(eager: None) -> None:
    with Workers(jobs=1) as workers:
        assert set(results(workers, pid, None, 50)) == {os.getpid()}


def test_large_work_goes_to_processes(eager: None) -> None:
    with Workers(jobs=2) as workers:
        done_by = results(workers, pid, None, 50)
    assert done_by[0] == os.getpid()
    assert os.getpid() not in done_by[1:]


def test_items_of_map_are_sent_alone() -> None:
    with ThreadPoolExecutor(1) as pool, Workers(pool) as workers:
        items = workers.map(slow, range(40))
        next(iter(items))
        assert len(BEGUN) < 10  # as many as one of a few equal chunks


def test_runs_that_share_processes_have_the_same_ones(eager: None) -> None:
    def processes_of_a_run(jobs: int, function: Any = pid) -> set[int]:
        with Workers(jobs=jobs) as workers:
            results(workers, function, None, 50)
            executor = workers.open_pool()
            assert isinstance(executor, loky.ProcessPoolExecutor)
            return {*executor._processes}

    with shared_processes():
        first, more, second = (processes_of_a_run(jobs) for jobs in (2, 3, 2))
        assert first == second and len(more) == 3 and not more & first
        assert not any(map(is_alive, more))
        with pytest.raises(TypeError):
            processes_of_a_run(2, squares)  # None + x²
        again = processes_of_a_run(2)
        assert not again & first and not any(map(is_alive, first))
    assert not any(map(is_alive, again))


@pytest.mark.parametrize("lives", [2])
def test_what_a_dead_process_had_in_hand_runs_again(eager: None, tmp_path: Path, lives: int) -> None:
    for life in range(lives):
        (tmp_path / str(life)).touch()
    with Workers(jobs=2) as workers:
        assert results(workers, squares_or_death, str(tmp_path), 9) == [x * x for x in range(9)]
    assert not list(tmp_path.iterdir())


def test_an_item_that_always_kills_its_process_is_one_error(
    eager: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "MOST_LOSSES", 2)
    for life in range(9):
        (tmp_path / str(life)).touch()
    with Workers(jobs=2) as workers, pytest.raises(MirageError, match="test: workers died 2 times"):
        results(workers, squares_or_death, str(tmp_path), 9)


def test_a_pool_of_the_caller_that_breaks_is_replaced(eager: None, tmp_path: Path) -> None:
    (tmp_path / "life").touch()
    with ProcessPoolExecutor(2, SPAWN) as pool, Workers(pool) as workers:
        assert results(workers, squares_or_death, str(tmp_path), 9) == [x * x for x in range(9)]


def test_an_error_of_an_item_is_the_callers(eager: None) -> None:
    with Workers(jobs=2) as workers, pytest.raises(TypeError):
        results(workers, squares, "seven", 9)


@pytest.mark.parametrize("value", ["dusk", "dask://", "dask://host", "dask://host:x", "http://host:80", 3, print])
def test_what_is_no_executor_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"executor: got .*, wanted dask, dask://HOST:PORT"):
        Options(executor=value)


def test_a_scheduler_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 1)
    with pytest.raises(OptionError, match=r"executor: no Dask scheduler answers at 127.0.0.1:1"), Workers("dask://127.0.0.1:1"):
        pass


def run(observer: Observer | None = None, **options: Any) -> Result:
    chosen = Options(device="cpu", top=2, max_block_ops=8, **options)
    return optimize("attention", attention(keys=256), chosen, observer)


@pytest.fixture(scope="module")
def alone() -> tuple[str, list[str]]:
    """The report and the sources of a run in one process."""
    result = run(jobs=1)
    return json.dumps(timeless(result.report.data())), [candidate.source for candidate in result.candidates]


@pytest.mark.slow
def test_two_jobs_give_the_same_report(eager: None, alone: tuple[str, list[str]]) -> None:
    result = run(jobs=2)
    assert (json.dumps(timeless(result.report.data())), [candidate.source for candidate in result.candidates]) == alone


def test_dask_gives_the_same_report_though_its_workers_die(dask: Executor, alone: tuple[str, list[str]]) -> None:
    killed = list[str]()

    def kill(stage: str, done: int, total: int | None, note: str) -> None:
        """End one worker, once, in the middle of each stage that has work for it."""
        if done and done != total and stage in ("search", "instantiate") and stage not in killed:
            killed.append(stage)
            os.kill(next(iter(dask._client.run(os.getpid).values())), signal.SIGKILL)  # type: ignore[attr-defined]

    result = run(kill, executor=dask)
    assert killed == ["search", "instantiate"]
    assert (json.dumps(timeless(result.report.data())), [candidate.source for candidate in result.candidates]) == alone


def _most_growth() -> int:
    return int(loky.process_executor._MAX_MEMORY_LEAK_SIZE)


def test_a_worker_that_keeps_what_it_found_goes_on() -> None:
    with Workers(jobs=2) as workers:
        assert workers.open_pool().submit(_most_growth).result() > _most_growth()


def test_processes_end_in_the_middle_of_work_of_which_some_was_cancelled() -> None:
    executor = loky.ProcessPoolExecutor(2, initializer=begin_worker)
    futures = [executor.submit(time.sleep, 60) for _ in range(8)]
    while not futures[0].running():
        time.sleep(0.01)
    cancelled = [future.cancel() for future in futures]
    processes = [*executor._processes]
    end_processes(executor, kill=True)
    assert any(cancelled) and processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def _with_a_child(written: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    written.write_text(str(child.pid))
    child.wait()


def test_processes_end_with_those_that_they_began(tmp_path: Path) -> None:
    executor, written = loky.ProcessPoolExecutor(1, initializer=begin_worker), tmp_path / "pid"
    executor.submit(_with_a_child, written)
    while not written.exists() or not written.read_text():
        time.sleep(0.01)
    end_processes(executor, kill=True)
    state = Path("/proc", written.read_text(), "stat")
    while state.exists() and state.read_text().split()[2] != "Z":  # nobody may wait for it here
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="no affinity of processes")
def test_workers_are_as_many_as_the_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7})
    assert Workers().count == 3 and Workers(jobs=2).count == 2
