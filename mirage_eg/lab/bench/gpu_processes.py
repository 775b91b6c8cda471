"""Processes of benchmarks side by side: one after another on each GPU, each with a limit of time."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter, sleep
from typing import IO, Generic, TypeVar

from mirage_eg.ir.errors import MirageError
from mirage_eg.pipeline.run.executors import usable_cores

_TAIL = 1500  # characters of what an ended process said

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process: its exit code, negative for a signal; the last it said; whether it was stopped as too late."""

    code: int
    said: str
    late: bool
    seconds: float


@dataclass(slots=True)
class _Running(Generic[T]):
    item: T
    process: "subprocess.Popen[bytes]"
    said: IO[bytes]
    device: int
    started: float = field(default_factory=perf_counter)


def run_on_gpus(
    items: Sequence[T],
    command: Callable[[T], Sequence[str]],
    devices: Sequence[str],
    seconds: float,
    ended: Callable[[T, End], bool],
    *,
    own_cores: bool = False,
) -> None:
    """Run each item's command (arguments of Python) in a process of its own, one at a time on each of `devices`.

    A device may be named several times. An item for which `ended` is true runs again, next. With `own_cores` the cores are
    shared out among the devices; else processes share them, each with a quarter as threads.
    """
    waiting, free = [*items], [*range(len(devices))]
    running: list[_Running[T]] = []
    cores = sorted(os.sched_getaffinity(0)) if own_cores and sys.platform == "linux" else []
    try:
        while waiting or running:
            while waiting and free:
                place = free.pop(0)
                running.append(_started(waiting.pop(0), command, devices, place))
                if share := cores[place :: len(devices)]:
                    os.sched_setaffinity(running[-1].process.pid, share)
            sleep(0.1)
            for entry in list(running):
                late = perf_counter() - entry.started > seconds
                if entry.process.poll() is None and not late:
                    continue
                running.remove(entry)
                free.append(entry.device)
                end = End(_stopped(entry), _tail(entry.said), late, perf_counter() - entry.started)
                if ended(entry.item, end):
                    waiting.insert(0, entry.item)
    finally:
        for entry in running:
            _stopped(entry)
            entry.said.close()


def visible_gpus() -> list[str]:
    """Names by which CUDA_VISIBLE_DEVICES selects the GPUs that this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        raise MirageError("bench: no GPU here: there is no nvidia-smi; run it on a machine with a CUDA GPU") from None
    names = listed.stdout.split() if listed.returncode == 0 else []
    if not names:
        raise MirageError("bench: nvidia-smi lists no GPU; run it on a machine with a CUDA GPU")
    return names


def _started(item: T, command: Callable[[T], Sequence[str]], devices: Sequence[str], place: int) -> _Running[T]:
    said = TemporaryFile()  # noqa: SIM115 – read once the process has ended
    threads = str(max(1, usable_cores() // 4))
    root = str(Path(__file__).parents[3])  # where the package is, installed or not
    environment: Mapping[str, str] = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads} | os.environ
    environment = {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": devices[place],
    }
    arguments = [sys.executable, *command(item)]
    process = subprocess.Popen(arguments, env=environment, stdout=said, stderr=said, process_group=0)
    return _Running(item, process, said, place)


def _stopped(entry: _Running[T]) -> int:
    """The exit code of a process; one that runs is killed with its group."""
    if entry.process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(entry.process.pid, signal.SIGKILL)
    return entry.process.wait()


def _tail(said: IO[bytes]) -> str:
    """The end of what a process said; nothing more is read from it."""
    with said:
        said.seek(0)
        return " ".join(said.read().decode(errors="replace")[-_TAIL:].split())
