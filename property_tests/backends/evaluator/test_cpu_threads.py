"""Work beside the search: it gives what it would have given alone, can be stopped, and leaves nothing changed behind it."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier, Event, Timer, get_ident

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mirage_eg.backends.evaluator.cpu_threads import (
    OverdueError,
    StoppedError,
    background_task,
    do_all,
    ending,
    keep_step_with,
    raise_if_stopped,
    with_own_threads,
)
from mirage_eg.backends.evaluator.matmul import product
from mirage_eg.ir.deadline import NEVER, after
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.pipeline.run.checkpoint import Checkpoint
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.work_items import Work


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_work_beside_is_done_by_one_other_thread() -> None:
    seen: list[int] = []
    done = Event()

    def work(item: int) -> None:
        seen.append(get_ident())
        if item == 49:
            done.set()

    with background_task(lambda: do_all(work, range(50))) as ready:
        assert done.wait(30)
        ready()
    assert len(seen) == 50
    assert set(seen).isdisjoint({get_ident()})
    assert len(set(seen)) == 1


class Device:
    """An array module whose device has work to do until `seconds` have passed; its functions return before."""

    def __init__(self, seconds: float) -> None:
        self.done, self.seconds, self.cuda = Event(), seconds, self

    def get_current_stream(self) -> "Device":
        return self

    def synchronize(self) -> None:
        self.done.wait(self.seconds)
        self.done.set()


def test_a_deadline_counts_what_a_device_has_done() -> None:
    device = Device(0.02)
    with ending(after(0.01)), pytest.raises(OverdueError):
        product(device, np.zeros((2, 2)), np.zeros((2, 2)), np.float64)
    assert device.done.is_set()


def test_without_a_deadline_nobody_waits_for_a_device() -> None:
    device = Device(30)
    with ending(NEVER):
        keep_step_with(device)
    assert not device.done.is_set()


def test_work_that_is_waited_for_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, both = Event(), Event(), Barrier(2)
    waiting = Timer(1.0, go.set)

    def work(item: int) -> None:
        if item == 0:
            begun.set()
            assert go.wait(30)
        else:
            both.wait(30)

    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr("mirage_eg.backends.evaluator.cpu_threads.threads", lambda: 2)
        monkeypatch.setattr("mirage_eg.backends.evaluator.cpu_threads.thread_pool", lambda: pool)
        with background_task(lambda: do_all(work, range(5))) as ready:
            assert begun.wait(30)
            waiting.start()
            ready()


def test_work_on_an_item_may_share_out_its_own() -> None:
    seen: list[tuple[int, int]] = []
    do_all(lambda outer: do_all(lambda inner: seen.append((outer, inner)), range(3)), range(8))
    assert sorted(seen) == [(outer, inner) for outer in range(8) for inner in range(3)]


def test_what_it_raises_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise UnsupportedError("no")

    with background_task(fail) as ready, pytest.raises(UnsupportedError, match="no"):
        ready()


def test_leaving_the_body_stops_it_at_the_next_piece() -> None:
    begun, worked = Event(), 0

    def work(item: int) -> None:
        nonlocal worked
        worked += 1
        begun.set()
        np.square(np.ones(1 << 20))

    with pytest.raises(KeyboardInterrupt), background_task(lambda: do_all(work, range(1 << 16))) as ready:
        begun.wait()
        raise KeyboardInterrupt
    assert 0 < worked < 1 << 16
    with pytest.raises(StoppedError):
        ready()


def test_interpreter_turns_and_blas_threads_are_restored_after_the_task() -> None:
    """Also where the body leaves a limit that it entered before, or after, the work did."""
    turn, threads = sys.getswitchinterval(), blas_threads()
    inside, leave = Event(), Event()

    @with_own_threads
    def work() -> None:
        inside.set()
        leave.wait()

    with background_task(work) as ready:
        inside.wait()
        assert sys.getswitchinterval() < turn
        assert set(blas_threads()) == {1}
        with_own_threads(lambda: None)()
        assert set(blas_threads()) == {1}  # the work is still inside
        leave.set()
        ready()
    assert (sys.getswitchinterval(), blas_threads()) == (turn, threads)


def test_work_without_end_that_asks_whether_to_go_on_ends_with_the_body() -> None:
    raise_if_stopped()  # whatever is not beside other work goes on
    begun = Event()

    def work() -> None:
        begun.set()
        while True:
            raise_if_stopped()

    with pytest.raises(KeyboardInterrupt), background_task(work) as ready:
        begun.wait()
        raise KeyboardInterrupt
    with pytest.raises(StoppedError):
        ready()


def test_what_waits_for_workers_ends_with_the_body_and_not_with_them() -> None:
    begun, leave = Event(), Event()

    def work(common: None, items: Sequence[int]) -> Iterator[int]:
        begun.set()
        leave.wait()
        yield from items

    with ThreadPoolExecutor(1) as pool, Workers(pool) as workers:
        with pytest.raises(KeyboardInterrupt), background_task(lambda: [*workers.run("test", work, None, [1, 2])]) as ready:
            begun.wait()
            raise KeyboardInterrupt
        with pytest.raises(StoppedError):
            ready()
        leave.set()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_result_that_an_interrupted_body_leaves_behind_is_not_kept(interrupted: bool, tmp_path: Path) -> None:
    begun, leave = Event(), Event()

    def work(common: None, items: Sequence[int]) -> Iterator[int]:
        begun.set()
        leave.wait()
        yield from items

    with closing(Checkpoint(tmp_path / "checkpoint.jsonl", {})) as checkpoint, Workers(jobs=1) as workers:
        todo = Work(workers, checkpoint)
        leaving = Timer(0.2, leave.set)
        with suppress(KeyboardInterrupt), background_task(lambda: todo.run("test", work, None, [1])) as ready:
            begun.wait()
            leaving.start()
            if interrupted:
                raise KeyboardInterrupt
            ready()
        assert checkpoint.has("test") is not interrupted


def test_processes_started_beside_hear_no_interrupt_and_others_do() -> None:
    ask = [sys.executable, "-c", "import signal; print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))"]

    def blocked() -> set[str]:
        return set(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split())

    ignored = {str(int(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    with background_task(blocked) as ready:
        assert ready() >= ignored
    assert blocked().isdisjoint(ignored)
