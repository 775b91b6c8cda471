"""A separate process with limits on time and memory, for laws of user rule files: saturation with them may not end.

The worker is a fresh interpreter: an e-graph does not survive a fork, and multiprocessing would run the caller's script again.
The worker's address space is limited. It ends with its parent, and at the end of a `with` block.
"""

import atexit
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from mirage_eg.backends.evaluator.processes import begin_worker
from mirage_eg.ir.errors import LimitError, RuleError

ADDRESS_SPACE = 4 * 2**30  # bytes, including the interpreter
_START_SECONDS = 120.0  # for the imports of a call
_CLOCK_FACTOR = 5.0  # the limit by the clock over the limit of processor time
_POLL_SECONDS = 0.1
_START = (
    f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve(*map(int, sys.argv[2:]))"
)


class Worker:
    """One process; `call` runs functions of importable modules in it, sequentially. It may map `address_space` bytes."""

    def __init__(self, address_space: int = ADDRESS_SPACE) -> None:
        self._address_space = address_space
        self._is_busy = False
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno()), str(address_space)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
            )
        self._connection = Connection(ours.detach())

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def is_ready(self) -> bool:
        """Whether it lives and waits for a call."""
        return not self._is_busy and self._process.poll() is None

    def close(self) -> None:
        """Kill the process and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._stderr.close()

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float,
        task: str | Callable[[], str],
        on_progress: Callable[[Any], None] | None = None,
    ) -> Any:
        """The result of `function(*arguments)`.

        If `on_progress` is given, the function gets one more argument: a function that passes values to `on_progress`.
        `seconds` is processor time of the worker after its imports, so that a busy machine does not change the limit. The
        limit by the clock is _CLOCK_FACTOR times `seconds`.

        Raises:
            LimitError: the call exceeded `seconds` or the memory limit; the message starts with `task`.
            RuleError: raised by the function.
        """

        def name() -> str:
            return task if isinstance(task, str) else task()

        self._is_busy = True
        try:
            self._connection.send((function, arguments, on_progress is not None))
            if not self._connection.poll(_START_SECONDS):
                raise LimitError(f"{name()} did not begin within {_START_SECONDS:g} s")
            deadline, spent = monotonic() + _CLOCK_FACTOR * seconds, self._cpu_seconds()
            while monotonic() < deadline and self._cpu_seconds() - spent <= seconds:
                if not self._connection.poll(_POLL_SECONDS):
                    continue
                kind, value = self._connection.recv()
                if kind == "result":
                    self._is_busy = False
                    return value
                if kind == "error":
                    self._is_busy = isinstance(value, MemoryError)  # then no later call has enough
                    raise value
                if kind == "progress" and on_progress is not None:
                    on_progress(value)
        except (EOFError, ConnectionError):
            raise LimitError(f"{name()} {self._cause()}") from None
        except MemoryError:
            raise LimitError(f"{name()} needed more memory than the {self._address_space >> 30} GiB allowed") from None
        raise LimitError(f"{name()} stopped after {seconds:g} s")

    def _cpu_seconds(self) -> float:
        """Processor time of the worker so far; the clock on systems without /proc."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return monotonic()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user, system

    def _cause(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        if any("memory allocation" in line or "MemoryError" in line for line in lines):
            return f"needed more memory than the {self._address_space >> 30} GiB allowed"
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return f"ended its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'}: {last[:200]})"


_IDLE: list[Worker] = []  # one at most


def in_worker(function: Callable[..., Any], *arguments: Any, seconds: float, task: str) -> Any:
    """The result of `function(*arguments)` in a worker. It is kept for the next call, which need not start one."""
    if _IDLE and not _IDLE[0].is_ready:
        _IDLE.pop().close()
    worker = _IDLE.pop() if _IDLE else Worker()
    try:
        return worker.call(function, *arguments, seconds=seconds, task=task)
    finally:
        is_main = threading.current_thread() is threading.main_thread()  # a worker ends with the thread that started it
        if worker.is_ready and is_main and not _IDLE:
            _IDLE.append(worker)
        else:
            worker.close()


@atexit.register
def _close_idle() -> None:
    while _IDLE:
        _IDLE.pop().close()


def serve(descriptor: int, address_space: int) -> None:
    """The main function of the worker: answer calls until the parent closes the connection."""
    begin_worker()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = address_space if hard == resource.RLIM_INFINITY else min(address_space, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, arguments, reports_progress = connection.recv()  # unpickling imports the function's module
            connection.send(("begun", None))
            on_progress = (lambda value: connection.send(("progress", value)),) if reports_progress else ()
            try:
                answer = ("result", function(*arguments, *on_progress))
            except (RuleError, MemoryError) as error:
                answer = ("error", error)
            connection.send(answer)
    os._exit(0)
