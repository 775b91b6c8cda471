"""Worker processes: they leave Ctrl-C to their parent, die with it, and have its custom ops."""

import ctypes
import gc
import os
import pickle
import signal
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from types import FunctionType
from typing import Any

from mirage_eg.backends.evaluator.garbage_collection import NEW_OBJECTS
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.ir.op.record import ElementwiseOp, OnNumbers

_PR_SET_PDEATHSIG = 1


def begin_worker() -> None:
    """Called by a worker process when it begins: ignore SIGINT, take SIGTERM, die with the parent (Linux), have a group of its
    own with its children."""
    if os.getpgrp() != os.getpid():  # which a session of its own has
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # which the parent's thread may have blocked
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.set_threshold(NEW_OBJECTS)


def keep_worker() -> None:
    """Called by a worker of loky that holds what takes long to make: loky would end one that has grown by 300 MB."""
    from loky import process_executor

    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize


def end_processes(executor: Any, kill: bool) -> None:
    """End an executor of loky, with `kill` in the middle of its work; its processes are waited for, and leave nothing.

    loky's own `shutdown(kill_workers=True)` raises InvalidStateError in its thread for a future that was cancelled, and leaves
    the processes alive (3.7.0). Its `kill_process_tree` begins a process for each worker, to ask for its children,
    where psutil is not installed.
    """
    if kill:
        for process in [*executor._processes.values()]:
            for kill_one in (os.killpg, os.kill):  # a worker that has not begun has no group
                with suppress(ProcessLookupError):
                    kill_one(process.pid, signal.SIGKILL)
    executor.shutdown(wait=True)


def pickled_ops() -> bytes:
    """The custom ops of this process, pickled; functions that a worker cannot import (of a script, a lambda) by value."""
    if not REGISTRY:
        return b""
    import cloudpickle

    specs = tuple(REGISTRY.values())
    for module in {sys.modules.get(function.__module__) for spec in specs for function in _functions(spec)}:
        if module is not None and PathFinder.find_spec(module.__name__.partition(".")[0]) is None:
            cloudpickle.register_pickle_by_value(module)  # a neighbour of a program file, say
    pickled: bytes = cloudpickle.dumps(specs)
    return pickled


def _functions(spec: ElementwiseOp) -> list[FunctionType]:
    exactly = spec.exactly.function if isinstance(spec.exactly, OnNumbers) else None
    return [function for function in (spec.definition, spec.numbers, exactly) if isinstance(function, FunctionType)]


def install_ops(pickled: bytes) -> None:
    """Add the custom ops of the parent to this process."""
    if pickled:
        REGISTRY.update({spec.name: spec for spec in pickle.loads(pickled)})
