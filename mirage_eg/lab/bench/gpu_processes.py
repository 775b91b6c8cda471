"""Processes of benchmarks side by side: one after another on each GPU, each with a limit of time."""

import json
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


@dataclass(frozen=True, slots=True)
class _Process:
    """A process with what it says."""

    popen: "subprocess.Popen[bytes]"
    said: IO[bytes]

    def tell(self, command: Sequence[str]) -> None:
        """Write a command to its standard input; one that has ended says why."""
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError), self.popen.stdin as line:
            line.write(json.dumps([*command]).encode() + b"\n")

    def stopped(self) -> int:
        """Kill what is left of its process group; gives the exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        return self.popen.wait()

    def tail(self) -> str:
        """The end of what it said; nothing more is read from it."""
        self.said.seek(0)
        text = " ".join(self.said.read().decode(errors="replace")[-_TAIL:].split())
        self.close()
        return text

    def close(self) -> None:
        self.said.close()
        if self.popen.stdin is not None:
            self.popen.stdin.close()


@dataclass(frozen=True, slots=True)
class _Running(Generic[T]):
    item: T
    process: _Process
    place: int
    started: float = field(default_factory=perf_counter)


def run_on_gpus(
    items: Sequence[T],
    command: Callable[[T], Sequence[str]],
    devices: Sequence[str],
    seconds: float,
    ended: Callable[[T, End], bool],
    *,
    own_cores: bool = False,
    ahead: Sequence[str] = (),
) -> None:
    """Run each item's command (arguments of Python) in a process of its own, one at a time on each of `devices`.

    A device may be named several times. An item for which `ended` is true runs again, next. With `own_cores` the cores are
    shared out among the devices; else processes share them, each with a quarter as threads. `ahead` is the command of a
    process that imports while the one before it runs, and reads an item's command as a line of JSON.
    """
    waiting, free = [*items], [*range(len(devices))]
    running: list[_Running[T]] = []
    begun: dict[int, _Process] = {}  # processes that import ahead, by their places
    cores = sorted(os.sched_getaffinity(0)) if own_cores and sys.platform == "linux" else []

    def start(arguments: Sequence[str], place: int) -> _Process:
        process = _process(arguments, devices[place], subprocess.PIPE if ahead else subprocess.DEVNULL)
        if share := cores[place :: len(devices)]:
            os.sched_setaffinity(process.popen.pid, share)
        return process

    try:
        while waiting or running:
            while waiting and free:
                place, item = free.pop(0), waiting.pop(0)
                if ahead:
                    process = begun.pop(place, None) or start(ahead, place)
                    process.tell(command(item))
                else:
                    process = start(command(item), place)
                running.append(_Running(item, process, place))
                if ahead and len(waiting) > len(begun):
                    begun[place] = start(ahead, place)
            sleep(0.1)
            for entry in list(running):
                late = perf_counter() - entry.started > seconds
                if entry.process.popen.poll() is None and not late:
                    continue
                running.remove(entry)
                free.append(entry.place)
                end = End(entry.process.stopped(), entry.process.tail(), late, perf_counter() - entry.started)
                if ended(entry.item, end):
                    waiting.insert(0, entry.item)
    finally:
        for process in (*(entry.process for entry in running), *begun.values()):
            process.stopped()
            process.close()


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


def _process(arguments: Sequence[str], device: str, stdin: int) -> _Process:
    said = TemporaryFile()  # noqa: SIM115 – read once the process has ended
    threads = str(max(1, usable_cores() // 4))
    root = str(Path(__file__).parents[3])  # where the package is, installed or not
    environment: Mapping[str, str] = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads} | os.environ
    environment = {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": device,
    }
    command = [sys.executable, *arguments]
    popen = subprocess.Popen(command, env=environment, stdin=stdin, stdout=said, stderr=said, process_group=0)
    return _Process(popen, said)
