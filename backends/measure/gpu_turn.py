"""Turns on the GPU: processes that tune or measure in parallel run the kernels that they time one at a time."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from threading import RLock
from typing import Any

_LOCK = RLock()  # of the threads of this process
_depth = 0  # of nested turns of the thread that holds the lock


def lock_file() -> Path:
    """The file by which processes of one user take turns on the visible GPUs."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0").replace(",", "_")
    return Path(gettempdir()) / f"mirage_eg-{os.getuid()}-gpu-{devices}.lock"


@contextmanager
def gpu_turn() -> Iterator[None]:
    """Wait until no other thread or process has the GPU, and hold it; a thread that holds it may ask again."""
    global _depth
    with _LOCK:
        handle = os.open(lock_file(), os.O_RDWR | os.O_CREAT, 0o600) if _depth == 0 else None
        _depth += 1
        try:
            if handle is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            _depth -= 1
            if handle is not None:
                os.close(handle)


def autotune_in_turn() -> None:
    """Let Inductor's autotuning in this process take turns on the GPU; it compiles while others measure."""
    from torch._inductor.runtime.benchmarking import benchmarker

    for name in ("benchmark_gpu", "benchmark_gpu_with_cuda_graph"):  # the second one since torch 2.12
        measure = getattr(benchmarker, name, None)
        if measure is not None and getattr(measure, "func", None) is not _in_turn:
            setattr(benchmarker, name, partial(_in_turn, measure))


def _in_turn(measure: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with gpu_turn():
        return measure(*args, **options)
