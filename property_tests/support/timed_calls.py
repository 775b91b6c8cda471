"""What tests call in the processes of timers; of its own, since each process imports it."""

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from time import sleep
from typing import Any

import loky

from mirage_eg.backends.measure.candidate_timer import DeviceLost
from mirage_eg.backends.measure.timing import Outcome, Timing


def process(gpu: str) -> Executor:
    executor: Executor = loky.ProcessPoolExecutor(1, env={"CUDA_VISIBLE_DEVICES": gpu})
    return executor


def full(source: str) -> tuple[Outcome, Timing | None]:
    return Outcome(1.0, 0.0, None), None


def dies(source: str) -> Outcome:
    if source == "1":
        os._exit(3)
    return Outcome(float(os.environ["CUDA_VISIBLE_DEVICES"]), 0.0, None)


def refuses() -> None:
    raise KeyError("int64")


def takes_some(source: str) -> Outcome:
    if source == "1":
        raise TypeError("torch.finfo: got torch.int64")
    return Outcome(1.0, 0.0, None)


def fails_first(folder: str) -> None:
    if not Path(folder, "begun").exists():
        Path(folder, "begun").touch()
        raise RuntimeError("out of memory")


def hangs(source: str) -> Outcome:
    if source == "1":
        sleep(120)
    return Outcome(1.0, 0.0, None)


def ends_as_told(source: str, shapes: Sequence[Any], ops: bytes) -> None:
    if source == "lost":
        raise DeviceLost("misaligned address")
    if source == "slow":
        sleep(60)
